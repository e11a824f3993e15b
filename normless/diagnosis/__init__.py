"""Diagnosis of a network: what keeps it from training, the evidence, the theory, and the edit that repairs it."""

from normless.diagnosis.diagnose import Diagnosis as Diagnosis
from normless.diagnosis.diagnose import diagnose as diagnose
from normless.diagnosis.findings import Check as Check
from normless.diagnosis.findings import Cure as Cure
from normless.diagnosis.findings import Finding as Finding
from normless.diagnosis.treatment import Treatment as Treatment
from normless.diagnosis.treatment import treat as treat
from normless.diagnosis.watch import Watch as Watch
from normless.diagnosis.watch import WatchWarning as WatchWarning
from normless.diagnosis.watch import watch as watch
