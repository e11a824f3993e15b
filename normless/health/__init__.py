"""Whether a trained network is healthy, measured on calibration batches: `nl.diagnose_trained`."""

from normless.health.diagnosis import diagnose_trained as diagnose_trained
from normless.health.report import Health as Health
