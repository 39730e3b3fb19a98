"""What the installed package is called: not ``flamma``, which on the index is somebody else's."""

from __future__ import annotations

DISTRIBUTION = "flamma-fl"
"""The name of the distribution; the import and the command are ``flamma`` all the same."""

WHEEL_PREFIX = "flamma_fl"
"""How the files of the distribution begin, since a wheel's name has no hyphen."""
