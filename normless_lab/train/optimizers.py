"""The optimizer of a run: its settings as text and as fields, and how it is built on a device."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from normless.spec import format_call, parse_call

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from normless.residual import ResidualMap

SGD = "SGD"
"""The default."""
OWN: Any = None
"""The default of a setting that the optimizer's class decides; `settle` replaces it."""

# Fields of a configuration and the arguments of optimizers that they are.
_FIELDS = {"rate": "lr", "weight_decay": "weight_decay", "momentum": "momentum", "nesterov": "nesterov"}
_OF_SGD = {"lr": 0.1, "weight_decay": 5e-4, "momentum": 0.9, "nesterov": False}
_UNFIT = {
    "LBFGS": "it computes the loss several times in a step",
    "SparseAdam": "it takes sparse gradients alone",
}
# Values of the fields that an optimizer has no such argument for.
_WITHOUT = {"rate": 1.0, "weight_decay": 0.0, "momentum": 0.0, "nesterov": False}


def settle(config: Any) -> None:
    """Give the fields of an optimizer their values: those of its text, else those set, else the class's defaults.

    The text is left with the other arguments, sorted by name, without those at their default; so that texts of one
    optimizer are one configuration. Of SGD the defaults are a rate of 0.1, a momentum of 0.9 and a decay of 5e-4.

    Raises:
        ValueError: there is no such optimizer, it does not take these arguments, or a field contradicts the text.
    """
    text = config.optimizer if isinstance(config.optimizer, str) and config.optimizer.strip() else SGD
    name, options, defaults = _parsed(text)
    options = dict(options)
    for field, argument in _FIELDS.items():
        given = getattr(config, field)
        stated = options.pop(argument, None)
        if argument not in defaults:
            value: Any = _WITHOUT[field]
            if given not in (None, value):
                raise ValueError(f"The optimizer {name} has no {argument}; leave {field}={given} out.")
        else:
            if None not in (given, stated) and given != stated:
                raise ValueError(
                    f"The optimizer is {config.optimizer!r}, and the setting {field} is {given!r}: leave one of the "
                    "two out."
                )
            value = next((value for value in (stated, given) if value is not None), defaults[argument])
        object.__setattr__(config, field, value)
    if isinstance(config.optimizer, str) and config.optimizer.strip():
        rest = {key: options[key] for key in sorted(options) if options[key] != defaults.get(key)}
        object.__setattr__(config, "optimizer", format_call(name, rest))


def _parsed(text: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return name, arguments and defaults of the optimizer of a text."""
    if text == SGD:
        return SGD, {}, _OF_SGD  # without torch, which takes a second to import
    return _defined.__wrapped__(text) if ":" in text else _defined(text)


@cache
def _defined(text: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    from normless.optim import defaults_of, parse_optimizer

    name = parse_call(text)[0]
    if name in _UNFIT:
        raise ValueError(f"{name} is not for this training, as {_UNFIT[name]}; choose an optimizer such as AdamW.")
    kind, options = parse_optimizer(text, given=("lr",))
    return name, options, dict(defaults_of(kind)) | (_OF_SGD if name == SGD else {})


def build(config: Any, network: nn.Module, structure: ResidualMap) -> Optimizer:
    """Build the optimizer of a configuration on the groups of its decay policy, for the device of the network.

    Where torch has a fused kernel it is used, else on a card a step that can be captured, if the class has one.

    Raises:
        ValueError: as in `normless.optim.make_optimizer`.
    """
    from torch.distributed.tensor import DTensor
    from torch.optim import Adam, AdamW

    from normless.optim import Muon, defaults_of, group_options, parse_optimizer
    from normless_lab.train.task import groups_of

    kind, options = parse_optimizer(config.optimizer, given=("lr",))
    parameter = next(network.parameters())
    is_sharded = isinstance(parameter, DTensor)
    # Fused kernels read a rate that is a tensor in single precision.
    is_exact = not (config.precision == "64-true" and parameter.is_cuda)
    groups = groups_of(config, network, structure, **group_options(kind, config.rate, options))
    if config.optimizer == SGD:
        return _sgd(config, groups, is_sharded, is_exact)
    takes = defaults_of(kind)
    chosen = {argument: getattr(config, field) for field, argument in _FIELDS.items() if argument in takes}
    if options.keys() & {"fused", "foreach", "capturable", "differentiable"}:
        pass
    elif kind in (Adam, AdamW, Muon) and not is_sharded and is_exact:
        chosen["fused"] = True
    elif "capturable" in takes and parameter.device.type != "cpu":
        chosen["capturable"] = True
    return kind(groups, **chosen | options)


def _sgd(config: Any, groups: list[dict[str, Any]], is_sharded: bool, is_exact: bool) -> Optimizer:
    """Build stochastic gradient descent with heavy-ball momentum."""
    import torch

    from normless_lab.train.capturable import CapturableSGD

    # On a CPU core the fused kernel takes 0.3 of the time of `foreach` for the 1,195 tensors of a 400-layer
    # Wide-ResNet, and no longer on any network. Of parameters that are sharded there is none.
    moves: dict[str, Any] = {"momentum": config.momentum, "nesterov": config.nesterov}
    if is_exact or is_sharded:
        optimizer = torch.optim.SGD(groups, lr=config.rate, **moves, fused=not is_sharded)
    else:
        optimizer = CapturableSGD(groups, lr=config.rate, **moves)
    if not is_sharded and config.momentum:
        # The fused kernel refuses a parameter that gets its first gradient after others.
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer
