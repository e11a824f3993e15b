"""Diagnosis of a network: what keeps it from training, the evidence, the theory, and the edit that repairs it."""

from normless.doctor._diagnose import diagnose as diagnose
from normless.doctor._findings import (
    Check as Check,
    Cure as Cure,
    Finding as Finding,
    NotAsked as NotAsked,
    Steps as Steps,
    check as check,
    describe as describe,
    finding as finding,
)
from normless.doctor._report import Diagnosis as Diagnosis
from normless.doctor._treatment import Treatment as Treatment, treat as treat
from normless.doctor.experiments._engine import Experiment as Experiment, tried as tried
from normless.doctor.facts._examination import Examination as Examination
from normless.doctor.trained import Health as Health
from normless.doctor.watch._watch import Watch as Watch, WatchWarning as WatchWarning, watch as watch
