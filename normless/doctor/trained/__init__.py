"""Whether a trained network is healthy, measured on calibration batches: `nl.check_health`."""

from normless.doctor.trained._diagnosis import Health as Health, check_health as check_health
