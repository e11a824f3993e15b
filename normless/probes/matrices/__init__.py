"""Products of random matrices, and what their condition costs linear networks."""
