"""Training a network to tell classes of sentences: its configuration, its assembly, what the run leaves behind."""
