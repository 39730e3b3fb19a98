"""Engines whose clients are behind messages."""
