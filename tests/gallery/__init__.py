"""The gallery: small networks of every kind and what a person states of each, for tests and benchmarks."""

from importlib import import_module

from gallery.row import ROWS, Row

KINDS = (
    *("images", "dense", "sequences", "series", "kinds_of_images", "kinds_of_sequences", "kinds_of_structures"),
    *("sums", "norms", "directions", "odd", "steps", "ours", "libraries", "zoo"),
)
for kind in KINDS:
    import_module(f"gallery.{kind}")

__all__ = ["KINDS", "ROWS", "Row"]
