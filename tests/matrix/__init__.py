"""The matrix: every network of the gallery by every scheme, and what holds of all conversions."""
