"""Positively homogeneous sets of parameters, and the gradients they cannot escape."""
