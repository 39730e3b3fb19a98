"""The parts of an audit: what clients may do, which clients, what they gain, and the tables."""
