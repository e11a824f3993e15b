"""What the γ of norms does: to the variance of the stream, and to its own learning rate."""
