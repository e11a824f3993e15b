"""Whether a trained network is healthy, measured on calibration batches: `nl.diagnose_trained`."""
