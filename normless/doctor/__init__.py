"""Diagnosis of a network: what keeps it from training, the evidence, the theory, and the edit that repairs it."""

from normless.doctor import _diagnose as _diagnose
from normless.doctor._findings import Check, Finding, NotAsked, Steps, check, describe, finding
from normless.doctor._report import Diagnosis
from normless.doctor._treatment import Treatment
from normless.doctor.facts._examination import Examination
from normless.doctor.trained._diagnosis import Health
from normless.doctor.trained._limits import QUANTITIES as QUANTITIES
from normless.doctor.watch._watch import Watch, WatchWarning

__all__ = [
    "Check",
    "Diagnosis",
    "Examination",
    "Finding",
    "Health",
    "NotAsked",
    "Steps",
    "Treatment",
    "Watch",
    "WatchWarning",
    "check",
    "describe",
    "finding",
]
