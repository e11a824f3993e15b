"""Whether one example of a batch changes the outputs of another."""
