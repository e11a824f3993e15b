"""`normless bench diagnose`: diagnoses of networks whose fault is known."""
