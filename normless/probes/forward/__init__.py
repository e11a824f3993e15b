"""What activations are, and what the weights alone predict of them."""
