"""`nl.convert_trained`: convert a trained network so that it starts near the trained function."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from inspect import Parameter, signature
from itertools import islice
from typing import Any, TypeVar

from torch import Tensor, nn

from normless._internal.arguments import forward_arguments, require_network
from normless.affine.trained import TrainedReport as TrainedReport
from normless.conversion import CONVERSION, Conversion, Part, convert_on
from normless.edits.calibration import Call
from normless.residual import ResidualMap
from normless.schemes import Scheme, trained_scheme

Model = TypeVar("Model", bound=nn.Module)


def convert_trained(
    model: Model,
    scheme: str | Scheme,
    batches: Any,
    *,
    most_batches: int = 16,
    residual_map: ResidualMap | None = None,
    allow_partial: bool = False,
    in_place: bool = False,
    only: Part | Sequence[Part] = (),
    check_inputs: Any = None,
) -> tuple[Model, TrainedReport]:
    """Convert a trained network so that it starts at the trained function, or near it; return it with a report.

    Batch norms that a scheme removes are folded into weights by their running statistics, and go on training there
    (`none`; `skipinit`, with multipliers of 1). What a scheme puts in place of norms is fitted in order of execution,
    in evaluation on the calibration batches: the factor and shift of a norm (`group_norm`) or of a standardized layer
    (`nf_resnet`) so that each channel has the mean and the deviation of what the norm put out,

        γ ← a · γ,   β ← a · β + c,   a = ± σ(y) / σ(z),   c = mean(y) − a · mean(z)

    with the trained norm's outputs y and those z in its place; and α, γ and β of γ·tanh(αx) + β (`dyt`, `derf`) by
    least squares. Constant statistics (`frozen_batch_norm`) and other batch norms are kept as they are. `nf_resnet`
    has no predicted variances and no multiplier, which are rules for random weights.

    The scheme of the network is `trained(scheme='…')`, which `convert`, `save` and `load` take too.

    Args:
        model: the trained network in its normalized form; it is not changed.
        scheme: as in `convert`.
        batches: a batch of inputs, or an iterable of batches, as a list or a DataLoader. A batch is a tensor, a
            dictionary of keyword arguments, a tuple of positional arguments, or a list, as of a DataLoader; what
            forward does not take, or of a list does not require, such as labels, is left out. Some hundred examples
            suffice. One batch takes four passes, several batches a pass for each norm.
        most_batches: how many batches are taken.
        residual_map, allow_partial, in_place, only, check_inputs: as in `convert`.

    Returns:
        The network in the mode of `model`, and the report: the distance from the trained network's outputs before and
        after the fits, for each norm and for the network.

    Raises:
        UnsupportedEditError: the scheme cannot keep the function, as `fixup`, which sets layers to zero; a norm that
            it removes has no constant statistics, as a layer norm; or as in `convert`.
        ValueError: there is no batch; or as in `convert`.
    """
    require_network(model)
    calls = calls_of(model, batches, most_batches)
    checked = None if check_inputs is None else forward_arguments((), {}, check_inputs)
    chosen = trained_scheme(scheme)
    network = convert_on(
        model, chosen, calls, only, residual_map, checked, allow_partial=allow_partial, in_place=in_place
    )
    made: Conversion = getattr(network, CONVERSION)
    assert made.report is not None
    return network, made.report


def calls_of(model: nn.Module, batches: Any, most: int) -> list[Call]:
    """Return the arguments of forward for each of at most `most` batches.

    Raises:
        ValueError: there is no batch, or `most` is below 1.
    """
    if most < 1:
        raise ValueError(f"Expected most_batches of 1 or more, got {most}.")
    single = isinstance(batches, (Tensor, Mapping)) or _is_call(model, batches)
    every = [batches] if single else list(islice(_iterable(batches), most))
    if not every:
        raise ValueError("Expected calibration batches, got none: pass a batch of inputs or an iterable of batches.")
    return [_call(model, batch) for batch in every]


def _iterable(batches: Any) -> Iterable[Any]:
    if isinstance(batches, str) or not isinstance(batches, Iterable):
        raise TypeError(f"Expected a batch of inputs or an iterable of batches, got a {type(batches).__name__}.")
    return batches


def _is_call(model: nn.Module, batches: Any) -> bool:
    """Whether a tuple holds the arguments of one call, or inputs and labels, rather than several batches."""
    if not isinstance(batches, tuple) or not batches or not all(isinstance(part, Tensor) for part in batches):
        return False
    alike = all((part.dim(), part.dtype) == (batches[0].dim(), batches[0].dtype) for part in batches)
    return not alike or len(batches) <= _positional(model, required=False)


def _call(model: nn.Module, batch: Any) -> Call:
    """Return the arguments of a batch, without labels."""
    if isinstance(batch, (tuple, list)):
        batch = tuple(batch)[: _positional(model, required=isinstance(batch, list))]
    return forward_arguments((), {}, batch)


def _positional(model: nn.Module, *, required: bool) -> int:
    """Return how many positional arguments forward takes, or requires, and at least 1."""
    parameters = signature(model.forward).parameters.values()
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return sys.maxsize
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    taken = [parameter for parameter in parameters if parameter.kind in kinds]
    return max(1, sum(not required or parameter.default is Parameter.empty for parameter in taken))
