"""Runs on text, a plugin of the training loop: classification of sentences, translation, and their data sets."""
