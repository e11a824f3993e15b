"""What gradients are: of logits, channels, parameters, and of the summands they are made of."""
