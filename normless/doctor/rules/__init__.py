"""The checks of a diagnosis: what is wrong, from the facts."""
