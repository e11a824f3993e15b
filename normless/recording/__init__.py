"""Record what a network does in a forward pass: its operations, the calls in its code, the runs of its modules."""
