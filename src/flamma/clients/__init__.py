"""Who the clients are: what they contribute, what it costs them."""
