"""Whether a trained network is healthy, measured on calibration batches: `nl.diagnose_trained`."""

from normless.doctor.trained._diagnosis import Health as Health, diagnose_trained as diagnose_trained
