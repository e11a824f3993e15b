"""Whether a trained network is healthy, measured on calibration batches: `nl.diagnose_trained`."""

from normless.doctor.trained.diagnosis import Health as Health
from normless.doctor.trained.diagnosis import diagnose_trained as diagnose_trained
