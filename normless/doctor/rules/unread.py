"""Checks of inputs that the outputs do not read: arguments, channels and positions, or all but the padding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from normless.doctor.facts.changes import change_at
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import Call
from normless.doctor.facts.influence import Padding, find_padding, influence_of
from normless.doctor.facts.tracer import tensors
from normless.doctor.findings import Evidence, Finding, NotAsked, Steps, check, finding

# Outputs are the same if they differ by less than this share of the largest output.
SAME = 1e-6
# Elements with less than this share of the largest influence do not reach the outputs.
FADED = 0.01
# Padding has an influence from this share of that of the other elements.
READ = 0.02
MANY_CHANNELS = 16
# Operations that return a changed copy.
CHANGES = {
    "add", "sub", "mul", "div", "masked_fill", "index_fill", "index_add", "scatter", "scatter_add", "clamp",
    "dropout", "relu", "where", "normalize", "layer_norm",
}  # fmt: skip


@check("inputs that are read")
def check_unread(exam: Examination) -> Steps:
    """Look for inputs without influence on the outputs, and for padding with more influence than the sequence."""
    yield from _thrown_away(exam)
    influence = exam.influence = influence_of(exam)
    if not any(bool(size.any()) for size in influence.values()):
        raise NotAsked("no gradient reaches the inputs")
    for padding in find_padding(exam.given):
        found = next(_padded(exam, padding, influence[padding.leaf]), None) if padding.leaf in influence else None
        if found is not None:
            yield found
            return "the padding is read in place of the sequences"
    for number, size in influence.items():
        reader = None if bool(size.any()) else _reader(exam, number)
        if reader is not None and _is_unread(exam, number):
            yield finding("discarded_input", (reader.place,), _described(exam, number))
    return f"{len(influence)} inputs, {sum(bool(size.any()) for size in influence.values())} with influence"


def _thrown_away(exam: Examination) -> Iterator[Finding]:
    """Report a changed copy of a tensor that nothing reads, while the tensor itself is read again."""
    # The last call that reads each.
    read = {source: number for number, call in enumerate(exam.flow.calls) for source in call.sources()}
    modules = [vars(module) for module in exam.model.modules()]
    kept = {exam.flow.of(tensor) for tensor in tensors((exam.passed.output, modules))}
    for number, call in enumerate(exam.flow.calls):
        is_copy = call.plain in CHANGES and (call.name == call.plain or call.name == f"__{call.plain}__")
        if not is_copy or not call.is_signal or call in read or call in kept:
            continue
        first, shape = call.reads[0]
        if call.shape == shape and first.kind == "call" and read[first] > number:
            evidence = {"operation": call.name, "line": str(call.line or "")}
            yield finding("thrown_away", call.where, evidence, **call.words)
            return


def unread_parts(exam: Examination) -> Iterator[Finding]:
    """Report inputs, channels and positions that nothing reads; advice unless the batch cannot be fitted."""
    padded = {padding.leaf for padding in find_padding(exam.given)}
    for number, size in exam.influence.items():
        if bool(size.any()):
            yield from () if number in padded else _parts(exam, number, size)
        elif _reader(exam, number) is None and _is_unread(exam, number):
            evidence = _described(exam, number)
            yield finding("unread_input", (), evidence, advice=not exam.knows("not_fitted"))


def _described(exam: Examination, number: int) -> Evidence:
    return {"input": _name(exam, number), "shape": str(tuple(exam.given[number].shape))}


def _name(exam: Examination, number: int) -> str:
    """Return the name of an input for messages."""
    given = exam.inputs.items() if isinstance(exam.inputs, dict) else ()
    named = [name for name, value in given if isinstance(value, Tensor)]
    if number < len(named):
        return f"input {named[number]!r}"
    return f"input {number + 1}" if len(exam.given) > 1 else "the input"


def _is_unread(exam: Examination, number: int, where: Tensor | None = None, among: Tensor | None = None) -> bool:
    """Whether other values of an input, or of masked elements from other ones, change no output."""
    x = exam.given[number]
    places = None if where is None else torch.arange(x.numel()).view(x.shape)[where].flatten()
    change = change_at(exam, number, places, None if among is None else x[among.to(x.device)])
    return float(change.max()) <= SAME * exam.size


def _reader(exam: Examination, number: int) -> Call | None:
    """Return the first trained call that reads an input, or a view of it."""
    given = exam.flow.of(exam.given[number])
    trained = (call for call in exam.flow.calls if call.is_trained)
    return next((call for call in trained if any(source.origin() is given for source in call.sources())), None)


def _padded(exam: Examination, padding: Padding, size: Tensor) -> Iterator[Finding]:
    """Report padding that is read, or that hides the elements before it."""
    size, real, by = size.reshape(*size.shape[:2], -1).sum(-1), padding.real, padding.by
    padded = (~real).any(1) & real.any(1) & size.any(1)
    if int(padded.sum()) < 2:
        return
    of_real, of_padding = ((size * part)[padded].amax(1) for part in (real, ~real))
    of_padding = of_padding / of_real.clamp_min(1e-30)
    influence = float((of_real / size[padded].amax(1)).median())
    evidence: dict[str, float | int | str] = {"padding": float((~real).double().mean()), "influence": influence}
    evidence |= {"shortest": int(real.sum(1).min()), "positions": real.shape[1]}
    if influence < FADED and float((of_padding > 1).double().mean()) > 0.5:
        at = real & padded[:, None]
        is_hidden = not bool((size * at).any()) and _is_unread(exam, padding.leaf, at, at)
        yield finding("inverted_mask" if is_hidden else "read_after_padding", (), evidence)
    elif by is not None and float(of_padding.median()) > READ:
        mask = exam.flow.of(exam.given[by])
        # Lengths that are only copied by a detach, to the CPU or to Python, mask nothing.
        readers = (call for call in exam.flow.calls if call.name != "detach" and not call.in_loss)
        reads_mask = any(source is mask for call in readers for source in call.sources())
        evidence |= {"influence": float(of_padding.median()), "mask": _name(exam, by)}
        if reads_mask and not _is_unread(exam, padding.leaf, ~real, real):
            yield finding("padding_read", (), evidence)


def _parts(exam: Examination, number: int, size: Tensor) -> Iterator[Finding]:
    """Report channels and positions of an input without influence."""
    x = exam.given[number]
    if x.dim() < 2 or len(x) < 4:
        return
    for axis in range(1, x.dim()) if x.dim() > 2 or not x.is_floating_point() else (1,):
        read = size.movedim(axis, 0).flatten(1).sum(1) > 0
        varies = (x != x[:1]).movedim(axis, 0).flatten(1).any(1).cpu()
        unread = (~read & varies).nonzero().flatten()
        # Convolutions leave out some positions at the border, and a loss the last one.
        is_channel = x.is_floating_point() and axis == 1 and len(read) <= MANY_CHANNELS
        if not len(unread) or (not is_channel and 2 * len(unread) < len(read)):
            continue
        if _is_unread(exam, number, torch.zeros(x.shape, dtype=torch.bool).index_fill(axis, unread, True)):
            evidence = {"unread": len(unread), "of": len(read), "axis": axis, "first": int(unread[0])}
            advice = not exam.knows("not_fitted")
            yield finding("unread_part", (), evidence, input=_name(exam, number), advice=advice)
            return
