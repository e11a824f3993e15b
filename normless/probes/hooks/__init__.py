"""How passes through a network are observed: hooks, positions, restored state."""
