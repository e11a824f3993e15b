"""Convert a network by a scheme: a new module with the scheme's edits, the original untouched."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NoReturn, cast

from torch import nn

from normless import schemes
from normless._internal.arguments import CallArguments, carry_inputs, forward_arguments, require_network
from normless._internal.calling import Call, with_call
from normless._internal.copying import Model, copied, without_values
from normless.affine._match_statistics import TrainedReport
from normless.edits import ReplaceNorms, Surgery
from normless.edits._calibration import Calibration
from normless.edits._norm_variants import KEEPING_STATISTICS
from normless.edits._original import Original
from normless.edits._plan import Plan as Plan
from normless.edits._remarks import lost_function, remarks, trained_function, unchanged
from normless.edits._verify import verify
from normless.errors import (
    AlreadyConvertedError,
    MissingValuesError,
    UnresolvedStructureError,
    UnsupportedEditError,
)
from normless.exclusive import exclusive
from normless.lifting import give_method
from normless.recording._modules import never_fuse
from normless.registry import EXTENSIONS, did_you_mean
from normless.residual import ResidualMap
from normless.schemes import Scheme
from normless.state import collection_paused

MARK = "normless_scheme"
CONVERSION = "normless"
"""The attribute with the `Conversion` of a converted network."""
_LOGGER = logging.getLogger("normless")

Part = str | nn.Module


@dataclass(frozen=True, repr=False)
class Conversion:
    """What a conversion did: its scheme, the changes as of `plan`, what it logged, and when it was.

    A conversion by `trained` has a report of what it kept.
    """

    scheme: str
    plan: Plan
    remarks: tuple[str, ...]
    date: datetime
    report: TrainedReport | None = None

    def __repr__(self) -> str:
        return f"Conversion({self.scheme!r}, {len(self.plan)} changes, {self.date:%Y-%m-%d %H:%M})"

    def __str__(self) -> str:
        head = f"converted by {self.scheme} at {self.date:%Y-%m-%d %H:%M}, {len(self.plan)} changes"
        return "\n".join([head, *self.remarks, *map(str, self.plan)])

    def __deepcopy__(self, _: object) -> Conversion:
        return self


@with_call
def convert(
    model: Model,
    scheme: str | Scheme,
    *inputs: Any,
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
    allow_partial: bool = False,
    in_place: bool = False,
    only: Part | Sequence[Part] = (),
    check_inputs: Any = None,
    call: Call | None = None,
    **kwargs: Any,
) -> Model:
    """Apply a scheme to a copy of a network and return the copy.

    The copy has its `Conversion` as the attribute `normless`: `print(net.normless)` shows scheme, date and changes.
    What needs attention, such as trained weights without the norms that scaled them, is logged by `normless`.

    Args:
        model: the network in its normalized form; it is not changed.
        scheme: a `Scheme` or its text, such as `"fixup"` or `"skipinit(alpha=1)"`; see `normless.scheme`.
        inputs: positional example inputs, from which the residual map is read and on which some schemes calibrate
            (`lsuv`).
        residual_map: the network's map if known; it is traced from the example inputs otherwise.
        kwargs, example_inputs, call: as in `normless.residual_map`.
        allow_partial: convert the network even if parts of its map are `unresolved`, or a norm still runs that is not
            in the map. By default such a network is refused.
        in_place: change and return the network itself, without a second set of weights. After an error, the network
            may be partly converted.
        only: modules, or qualified names of modules or blocks of the map; only the parts at or under them are
            converted, and L counts the blocks there. The text `fixup(only=('backbone',))` is equivalent.
        check_inputs: like `example_inputs`, for the passes that map the network and check the result; a few examples
            suffice if the example inputs are a large batch for calibration. The example inputs if None.

    Raises:
        AlreadyConvertedError: the network already carries a scheme.
        UnsupportedEditError: the network offers no place for an edit of the scheme, or afterwards outputs or
            gradients on the example inputs are not finite, or parameters have lost their gradients.
        UnresolvedStructureError: the residual structure cannot be read; without `allow_partial`, a part of it is
            unresolved, or a norm still runs after the conversion, in training or in evaluation.
        ValueError: the scheme's name, its arguments or a name in `only` are unknown.
    """
    given = forward_arguments(inputs, kwargs, example_inputs)
    checked = None if check_inputs is None else forward_arguments((), {}, check_inputs)
    return convert_on(
        model, scheme, [given], only, residual_map, checked, allow_partial=allow_partial, in_place=in_place
    )


@exclusive
def convert_on(
    model: Model,
    scheme: str | Scheme,
    batches: Sequence[CallArguments],
    only: Part | Sequence[Part] = (),
    residual_map: ResidualMap | None = None,
    checked: CallArguments | None = None,
    *,
    allow_partial: bool = False,
    in_place: bool = False,
    tells: bool = True,
) -> Model:
    """Convert a network as `convert` does, with the arguments of one or several batches; the first is the example.

    What needs attention is logged, and compared with the network before, if it `tells`.
    """
    example = batches[0]
    with collection_paused():
        original = Original(model, *(checked or example), residual_map)
        chosen, mapped = prepared(original, scheme, allow_partial, only)
        network: nn.Module = model if in_place else copied(model)
        calibration = Calibration(batches if any(map(len, example)) else ())
        surgery = Surgery(network, mapped, example, only=chosen.only, calibration=calibration)
        known = trained_function(surgery, checked or example) if chosen.edits and tells else None
        _operate(surgery, chosen)
        if any(map(len, example)):
            if chosen.edits:
                surgery.example = checked or example
                verify(surgery, None if in_place else model, allow_partial)
            carry_inputs(surgery.model, *example)
    setattr(surgery.model, MARK, chosen.text)
    lost = lost_function(surgery, chosen.text, chosen.edits, checked or example, known)
    said = (*unchanged(surgery, chosen.name, chosen.edits), *remarks(surgery), *lost)
    report = None if calibration.report is None else replace(calibration.report, scheme=chosen.text)
    made = Conversion(chosen.text, Plan(surgery.log.changes), said, datetime.now().astimezone(), report)
    setattr(surgery.model, CONVERSION, made)
    if made.remarks and tells:
        _LOGGER.warning(
            "normless: %s converted by %s: %s", type(model).__name__, made.scheme, "; ".join(made.remarks)
        )
    if hasattr(surgery.model, "save_pretrained"):
        give_method(surgery.model, "save_pretrained", _save_pretrained)
    return cast(Model, surgery.model)


@exclusive
@with_call
def plan(
    model: nn.Module,
    scheme: str | Scheme,
    *inputs: Any,
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
    allow_partial: bool = False,
    only: Part | Sequence[Part] = (),
    call: Call | None = None,
    **kwargs: Any,
) -> Plan:
    """List the changes that `convert` would make, in order, as printable data; arguments and errors are the same.

    The edits are applied to a copy on the meta device, without a second set of weights, unless an edit reads weights
    or, like `lsuv`, the example inputs.
    """
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    original = Original(model, inputs, kwargs, residual_map)
    return plan_of(original, *prepared(original, scheme, allow_partial, only))


@exclusive
def plan_of(original: Original, chosen: Scheme, mapped: ResidualMap, *, runs: bool = True) -> Plan:
    """List the changes of a scheme, given its map by `prepared`.

    Without `runs`, a scheme that runs the network on the example inputs raises an UnreadInputsError.
    """
    model, given = original.model, (original.inputs, dict(original.kwargs))
    needs = {need for edit in chosen.edits for need in edit.needs}
    unread = (_Unread(), {}) if any(map(len, given)) else given
    if "inputs" in needs and not runs and given is not unread:
        raise UnreadInputsError("This scheme runs the network on the example inputs.")
    known = original if original.has_values else None
    # An edit may read values, which weights on the meta device do not have, or the inputs.
    with suppress(RuntimeError):
        return Plan(_operate(Surgery(without_values(model), mapped, unread, known, chosen.only), chosen).log.changes)
    surgery = _operate(Surgery(copied(model), mapped, given if runs else unread, only=chosen.only), chosen)
    return Plan(surgery.log.changes)


def scheme_of(model: nn.Module) -> str | None:
    """Return the text of the scheme by which a network was converted, or None."""
    mark = getattr(model, MARK, None)
    return mark if isinstance(mark, str) else None


def prepared(
    original: Original, scheme: str | Scheme, allow_partial: bool = False, only: Part | Sequence[Part] = ()
) -> tuple[Scheme, ResidualMap]:
    """Return the scheme and its map of an unconverted network; refuse an incomplete map if the scheme has edits."""
    model = original.model
    chosen = schemes.scheme(scheme)
    require_network(model)
    parts = [only] if isinstance(only, (str, nn.Module)) else only
    if parts:
        chosen = chosen.within(*(_name_of(model, part) for part in parts))
    earlier = scheme_of(model)
    if earlier is not None and schemes.scheme(earlier).edits and not _gives_back(chosen, earlier):
        raise AlreadyConvertedError(
            f"This {type(model).__name__} was converted by {earlier!r} already; {chosen.text!r} is defined on the "
            "network as it was before. Convert the original, or build it anew; only plain_batch_norm gives a network "
            "that was converted by sync_batch_norm or another variant of batch norm its batch norms back."
        )
    if chosen.edits:
        original.check()
    mapped = original.map
    if chosen.only:
        known_names = {path for path, _ in model.named_modules(remove_duplicate=False)}
        known_names |= {block.name for block in mapped.walk()}
        for name in chosen.only:
            if name not in known_names:
                raise ValueError(
                    f"only={name!r} names no module and no residual block of this {type(model).__name__}."
                    f"{did_you_mean(name, known_names)} residual_map lists the blocks."
                )
        mapped = mapped.within(chosen.only)
    if mapped.unresolved and chosen.edits and not allow_partial:
        listed = "; ".join(map(str, mapped.unresolved))
        raise UnresolvedStructureError(
            f"{chosen.text!r} would convert only a part of this {type(model).__name__}, since its map left something "
            f"unresolved: {listed}. allow_partial=True converts the rest."
        )
    mapped = mapped.with_every_norm() if chosen.norms == "all" else mapped
    return chosen, mapped.without_global_skips() if chosen.level == "inner" else mapped


def _gives_back(chosen: Scheme, earlier: str) -> bool:
    """Whether a scheme turns the norms of the earlier one, variants of batch norms, back into batch norms."""
    families = [
        {edit.family if isinstance(edit, ReplaceNorms) else None for edit in edits}
        for edits in (chosen.edits, schemes.scheme(earlier).edits)
    ]
    return families[0] == {"plain"} and families[1] <= {*KEEPING_STATISTICS}


def _name_of(model: nn.Module, part: Part) -> str:
    """Return the qualified name of a part of a network that is given by name or as a module."""
    if isinstance(part, str):
        return part
    name: str | None = next((name for name, module in model.named_modules() if module is part), None)
    if name is None:
        raise ValueError(f"The {type(part).__name__} in only= is not a module of this {type(model).__name__}.")
    return name


def _operate(surgery: Surgery, scheme: Scheme) -> Surgery:
    """Apply the scheme's edits."""
    never_fuse(surgery.model)
    surgery.log.scheme = scheme.as_called
    with collection_paused():
        for edit in scheme.edits:
            try:
                surgery.run(edit)
            except UnsupportedEditError as error:
                # People wrote the scheme, not its edits.
                if error.scheme:
                    raise
                raise UnsupportedEditError(f"{scheme.as_called} is not possible: {error}") from error
    return surgery


class UnreadInputsError(MissingValuesError):
    """A plan that runs no pass belongs to a scheme that runs the network on the example inputs."""


class _Unread(tuple[Any, ...]):
    """Example inputs that cannot be read, since a meta convolution on real inputs reads unallocated memory."""

    def _refuse(self, *_: object) -> NoReturn:
        raise UnreadInputsError("The plan of this scheme runs the network on the example inputs.")

    __len__ = __iter__ = __getitem__ = _refuse


def _save_pretrained(net: nn.Module, *arguments: Any, **options: Any) -> None:
    """Write files that `normless.load` reads, as the `save_pretrained` of a converted network of transformers."""
    EXTENSIONS["save_pretrained"](net, *arguments, **options)
