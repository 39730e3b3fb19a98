"""FLamma's strategies inside a Flower app of your own."""
