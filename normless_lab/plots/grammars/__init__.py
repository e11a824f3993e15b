"""The five grammars of all figures, and their common parts."""
