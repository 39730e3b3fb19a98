"""Experiments: configurations, runs that can be resumed, and comparisons of many runs."""
