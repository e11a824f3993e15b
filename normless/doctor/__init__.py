"""Diagnosis of a network: what keeps it from training, the evidence, the theory, and the edit that repairs it."""

from normless.doctor.diagnose import diagnose as diagnose
from normless.doctor.experiments.engine import Experiment as Experiment
from normless.doctor.experiments.engine import tried as tried
from normless.doctor.facts.examination import Examination as Examination
from normless.doctor.findings import Check as Check
from normless.doctor.findings import Cure as Cure
from normless.doctor.findings import Finding as Finding
from normless.doctor.findings import NotAsked as NotAsked
from normless.doctor.findings import Steps as Steps
from normless.doctor.findings import check as check
from normless.doctor.findings import describe as describe
from normless.doctor.findings import finding as finding
from normless.doctor.report import Diagnosis as Diagnosis
from normless.doctor.trained import Health as Health
from normless.doctor.treatment import Treatment as Treatment
from normless.doctor.treatment import treat as treat
from normless.doctor.watch.watch import Watch as Watch
from normless.doctor.watch.watch import WatchWarning as WatchWarning
from normless.doctor.watch.watch import watch as watch
