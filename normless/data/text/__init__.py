"""Labelled sentences."""
