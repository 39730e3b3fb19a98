"""Runs clients on this machine, in one process or several."""
