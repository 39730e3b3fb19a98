"""A federation of real sites: keys and folders for every host, and the processes on each.

Flower's SuperLink and SuperNodes do the talking; the modules here make what they need, start
them, look after them, and keep everybody out who does not belong.
"""
