"""`nl.convert_trained`: convert a trained network and fit what takes the place of its norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normless._internal.arguments import calls_of, forward_arguments, require_network
from normless._internal.copying import Model
from normless.affine._match_statistics import TrainedReport as TrainedReport
from normless.conversion import CONVERSION, Conversion, Part, convert_on
from normless.residual import ResidualMap
from normless.schemes import Scheme, scheme as make_scheme, trained
from normless.spec import format_call, parse_call, split_terms


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
    """Convert a trained network and fit what takes the place of its norms, so that it goes on from its function.

    `convert` prepares a network to be trained from the start; this keeps what it has learned, exactly or nearly.

    Batch norms that a scheme removes are folded into weights by their running statistics, and go on training there
    (`none`; `skipinit`, with multipliers of 1). What a scheme puts in place of norms is fitted in order of execution,
    in evaluation on the calibration batches: the factor and shift of a norm (`group_norm`) or of a standardized layer
    (`nf_resnet`) so that each channel has the mean and the deviation of what the norm put out,

        γ ← a · γ,   β ← a · β + c,   a = ± σ(y) / σ(z),   c = mean(y) − a · mean(z)

    with the trained norm's outputs y and those z in its place; and α, γ and β of γ·tanh(αx) + β (`dyt`, `derf`) by
    least squares. Constant statistics (`frozen_batch_norm`) and other batch norms are kept as they are. `nf_resnet`
    has no predicted variances, which are a rule for random weights.

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
    chosen = _trained_scheme(scheme)
    network = convert_on(
        model, chosen, calls, only, residual_map, checked, allow_partial=allow_partial, in_place=in_place
    )
    made: Conversion = getattr(network, CONVERSION)
    assert made.report is not None
    return network, made.report


def _trained_scheme(name: str | Scheme) -> Scheme:
    """Return the scheme `trained` of a scheme; `level`, `norms` and `only` become its own."""
    given = make_scheme(name)
    first, *further = split_terms(given.text)
    own, written = parse_call(first)
    if own == trained.__name__:
        return given
    outer = {key: written.pop(key) for key in ("level", "norms", "only") if key in written}
    text = " + ".join([format_call(own, written), *further])
    return make_scheme(trained.__name__, scheme=text, **outer)
