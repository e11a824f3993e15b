"""Adapters of published tools that record statistics and state no verdict, read as generously as they can be.

Import this package, and the tools are diagnosers of `benchmarks.faults`.
"""

from benchmarks.faults.rivals import RIVALS, Rival
from benchmarks.rivals.cockpit import cockpit_diagnose, cockpit_watch
from benchmarks.rivals.torchinstruments import torchinstruments_diagnose, torchinstruments_watch

# `package` is preloaded into the processes that answer: it must be this package, which adds the rivals.
RIVALS["cockpit"] = Rival("cockpit", cockpit_diagnose, cockpit_watch, "benchmarks.rivals")
RIVALS["torchinstruments"] = Rival(
    "torchinstruments", torchinstruments_diagnose, torchinstruments_watch, "benchmarks.rivals"
)
