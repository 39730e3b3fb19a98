"""Engines of which the clients are behind messages."""
