"""Clients on Flower: in its simulation, or at real sites behind a network.

The strategies, the clients' ``respond``, the trainers and the records are those of every engine;
here is only what carries them over Flower's messages. Nothing else in the package imports flwr.
"""
