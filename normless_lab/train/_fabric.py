"""Lightning Fabric, imported without torchmetrics.

Fabric imports torchmetrics where it is installed, to compare its version. That imports torchvision, transformers,
torch's compiler and more, which takes longer than all that a training needs.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

_NAME = "torchmetrics"


def _import_fabric() -> None:
    """Import Fabric with a module in the place of torchmetrics that has its version alone."""
    stand_in = ModuleType(_NAME)
    try:
        stand_in.__dict__["__version__"] = version(_NAME)
    except PackageNotFoundError:
        return
    sys.modules[_NAME] = stand_in
    try:
        import lightning_fabric  # noqa: F401
    finally:
        del sys.modules[_NAME]


if not {_NAME, "lightning_fabric"} & sys.modules.keys():
    _import_fabric()

from lightning_fabric import Fabric as Fabric  # noqa: E402
from lightning_fabric.plugins import DoublePrecision as DoublePrecision, MixedPrecision as MixedPrecision  # noqa: E402
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy as ModelParallelStrategy  # noqa: E402
