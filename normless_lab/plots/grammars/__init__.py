"""The five grammars that every figure is drawn by, and what they share."""
