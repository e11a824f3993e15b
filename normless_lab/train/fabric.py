"""Lightning Fabric, imported in half of the time: it asks for versions by importing packages that it does not use."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

from lightning_utilities.core import imports
from packaging.version import Version


def _compare(package: str, op: Callable[..., bool], version: str, use_base_version: bool = False) -> bool:
    """Compare the version of a distribution, as `compare_version` compares that of an imported package."""
    try:
        installed = Version(version_of(package))
    except PackageNotFoundError:
        return False
    return op(Version(installed.base_version) if use_base_version else installed, Version(version))


_COMPARE_BY_IMPORT = imports.compare_version
try:
    # Fabric asks for torchmetrics, which imports torchvision and transformers where they are installed.
    imports.compare_version = _compare
    from lightning_fabric import Fabric as Fabric
    from lightning_fabric.plugins import DoublePrecision as DoublePrecision
    from lightning_fabric.plugins import MixedPrecision as MixedPrecision
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy as ModelParallelStrategy
finally:
    imports.compare_version = _COMPARE_BY_IMPORT
