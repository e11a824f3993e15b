"""What a worker process imports before its first task, as fast as it can be."""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from types import ModuleType

from normless.garbage import uncollected

RUNS = "normless.train.training_run"


def import_what_runs_need() -> None:
    """Import what every run needs, and keep Python's search for reference cycles from looking at it ever again.

    It holds most of a worker's objects: each full search would take a fifth of a second, and there would be several
    during the imports and one in every run of a deep network.
    """
    # Where this fails, a task says what is missing.
    with uncollected(), _known_by_version("torchmetrics"), suppress(ImportError):
        importlib.import_module(RUNS)
    gc.freeze()
    # Libraries that count their objects as the process ends would report those that nothing collected.
    atexit.register(gc.unfreeze)


@contextmanager
def _known_by_version(package: str) -> Iterator[None]:
    """In the body an installed package is a module with a version and nothing else.

    Fabric reads the version of torchmetrics as it is imported, which would bring torchvision, transformers, scipy.
    """
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        version = ""
    if not version or package in sys.modules:
        yield
        return
    module = ModuleType(package)
    module.__dict__["__version__"] = version
    sys.modules[package] = module
    try:
        yield
    finally:
        del sys.modules[package]
