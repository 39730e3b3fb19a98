"""Where clients run: on this machine's cores, or behind Flower's messages."""
