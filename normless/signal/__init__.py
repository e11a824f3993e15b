"""The moments of activations, followed through a network from its weights alone."""
