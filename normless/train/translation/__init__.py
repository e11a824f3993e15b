"""Training a network to translate: its configuration, what a step is, BLEU, and what the run leaves behind."""
