"""Results for a reader: the headline claims, a page per paper, tables."""
