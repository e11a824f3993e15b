"""The benchmark of diagnosis: diagnoses of networks whose fault is known."""
