"""Measurements of the repository, run from its root; the distribution does not contain them."""
