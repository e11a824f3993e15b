"""Adapters of published tools; those that state no verdict are read as generously as they can be.

Import this package, and the tools are diagnosers of `tests.faults`.
"""

from benchmarks.rivals.cockpit import cockpit_diagnose, cockpit_watch
from benchmarks.rivals.torch_audit import torch_audit_diagnose, torch_audit_watch
from benchmarks.rivals.torchinstruments import torchinstruments_diagnose, torchinstruments_watch
from tests.faults.diagnosers import DIAGNOSERS, Diagnoser

# `package` is preloaded into the processes that answer: it must be this package, which adds the rivals.
DIAGNOSERS["cockpit"] = Diagnoser("cockpit", cockpit_diagnose, cockpit_watch, "benchmarks.rivals")
DIAGNOSERS["torchinstruments"] = Diagnoser(
    "torchinstruments", torchinstruments_diagnose, torchinstruments_watch, "benchmarks.rivals"
)
DIAGNOSERS["torch-audit"] = Diagnoser("torch-audit", torch_audit_diagnose, torch_audit_watch, "benchmarks.rivals")
