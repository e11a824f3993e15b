"""The benchmark of a CUDA card: steps, their memory and share of the peak, simultaneous runs, time to an accuracy."""
