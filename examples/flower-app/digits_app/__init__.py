"""A small Flower app: digits, a network with batch norm, and one of FLamma's strategies."""
