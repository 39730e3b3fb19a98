"""Our runs over Flower: in its simulation, or with clients at real sites.

Strategies, responses, trainers and records are the same as on every engine. This package only
carries them in Flower's messages. For a Flower app of your own, see :mod:`flamma.flower`.
"""
