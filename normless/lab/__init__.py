"""Experiments made of many runs: what to run, the processes that run it, and what is shown of it."""
