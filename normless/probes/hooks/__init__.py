"""How a pass through a network is watched: places, hooks, and a network that is left as it was."""
