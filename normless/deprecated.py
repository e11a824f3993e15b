"""Public names and packages that moved; the former ones work with a ``DeprecationWarning``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MOVED = {
    "normless.UnsupportedEdit": "normless.errors.UnsupportedEditError",
    "normless.errors.UnsupportedEdit": "normless.errors.UnsupportedEditError",
    "normless.models.SOURCE": "normless.models.TRANSFORMERS",
    "normless.models.TokenNumbers": "normless.zoo.TokenNumbers",
    "normless.models.checkpoint_folder": "normless.zoo.checkpoint_folder",
    "normless.models.text_classifier": "normless.zoo.text_classifier",
    "normless.optim.rate_multiplier": "normless_lab.train.rate_multiplier",
    "normless.optim.set_rate": "normless_lab.train.set_rate",
    "normless.optim.step": "normless_lab.train.step",
}
# Packages that were split, with those that all public names of the second ones came from.
_SPLIT = {"normless.probes": ("normless_papers.probes", "normless_papers.theory")}
_PACKAGES = {
    "normless.decoding": "normless_lab.train",
    "normless.lab": "normless_lab.sweeps",
    "normless.lab.laboratory": "normless_lab.sweeps",
    "normless.lab.sweep": "normless_lab.sweeps",
    "normless.machine": "normless_lab.process",
    "normless.output": "normless_lab.process",
    "normless.papers": "normless_papers",
    "normless.report": "normless_lab.plots",
    "normless.training": "normless_lab.train",
}
# Former functions that measured one probe's table: its class or name, and the arguments by position after the model.
_TABLES = {
    "normless.probes.channel_moments": ("activations", "inputs"),
    "normless.probes.covariance_table": ("covariance", "inputs residual_map"),
    "normless.probes.gamma_variance_table": ("stream", "inputs residual_map"),
    "normless.probes.gradient_moments": ("gradients", "inputs targets"),
    "normless.probes.logit_gradients": ("logits", "inputs targets"),
    "normless.probes.signal_table": ("signal", "inputs residual_map"),
    "normless_papers.probes.activation_histograms": ("ActivationHistograms", "inputs layers channels"),
    "normless_papers.probes.gradient_histograms": ("ParameterGradientHistograms", "inputs targets parameters"),
    "normless_papers.probes.gradient_sum_table": ("GradientSums", "inputs targets layers"),
    "normless_papers.theory.input_bound_table": ("InputGradientBounds", "inputs targets residual_map"),
    "normless_papers.theory.set_bound_table": ("SetGradientBounds", "inputs targets residual_map"),
}


def moved(package: str, name: str, stacklevel: int = 2) -> Any:
    """What a package or module had under a name, from its new place; AttributeError if it never had it."""
    former = f"{package}.{name}"
    home = _MOVED.get(former)
    for part in _SPLIT.get(package, ()):
        if f"{part}.{name}" in _TABLES or name in import_module(part).__all__:
            home = f"{part}.{name}"
    if home is not None:
        warnings.warn(f"{former} moved to {home}; import it from there.", DeprecationWarning, stacklevel)
        module, _, name = home.rpartition(".")
        return getattr(import_module(module), name)
    if former == "normless.probes.measured_tables":
        warnings.warn(f"{former} is replaced by normless.probe.", DeprecationWarning, stacklevel)
        return _measured_tables
    if former in _TABLES:
        probe, positional = _TABLES[former]
        message = f"{former} is replaced by normless.probe(model, (inputs, targets), [{probe}])."
        warnings.warn(message, DeprecationWarning, stacklevel)
        return _table_of(probe if probe.islower() else getattr(import_module(package), probe), positional.split())
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def _table_of(probe: Any, positional: list[str]) -> Callable[..., Any]:
    """A function of a model and a batch that returns the table of one probe."""

    def table(model: Any, *values: Any, **options: Any) -> Any:
        arguments = dict(zip(positional, values, strict=False)) | options
        shared = {name: arguments.pop(name) for name in ("loss", "residual_map", "training") if name in arguments}
        inputs, targets = arguments.pop("inputs"), arguments.pop("targets", None)
        name = "logit_matrix" if arguments.pop("by_example", False) else probe
        probes = import_module("normless.probes")
        watcher = (probes.PROBES[name] if isinstance(name, str) else name)(**arguments)
        measured = probes.probe(model, (inputs, targets), [watcher], **shared)
        return next(iter(measured.tables.values()))

    return table


def _measured_tables(
    model: Any, watchers: Mapping[str, Any], inputs: Any, targets: Any = None, **options: Any
) -> tuple[float, dict[str, Any]]:
    """The loss of a batch, and the table of each watcher; several may be of one class."""
    measure = partial(import_module("normless.probes").probe, model, (inputs, targets), **options)
    return measure([]).loss, {name: next(iter(measure([one]).tables.values())) for name, one in watchers.items()}


class FormerPackages(MetaPathFinder, Loader):
    """Finder and loader of modules with a former name, whose attributes are those of the package that replaces it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """The specification of a module with a former name."""
        return ModuleSpec(fullname, self, is_package=True) if fullname in _PACKAGES else None

    def exec_module(self, module: ModuleType) -> None:
        """Give the module the attributes of the package that replaces it."""
        new = _PACKAGES[module.__name__]
        warnings.warn(f"{module.__name__} is now {new}; import it from there.", DeprecationWarning, stacklevel=2)
        package = import_module(new)
        vars(module)["__getattr__"] = lambda name: getattr(package, name)
        vars(module)["__all__"] = list(getattr(package, "__all__", ()))
