"""Broken trainings from published sets, each with its repaired twin, and healthy odd ones: a benchmark for diagnosers."""
