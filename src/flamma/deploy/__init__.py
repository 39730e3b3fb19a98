"""A federation of real sites: keys and folders for every host, and the processes on each.

Flower's SuperLink and SuperNodes carry the messages. The modules here create what they need, start
and supervise them, and keep out of the server whoever is not a site of the federation.
"""
