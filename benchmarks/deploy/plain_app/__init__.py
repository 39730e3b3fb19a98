"""Flower's own FedAvg on three sites, to time a round of it."""
