"""Checks of inputs that the outputs do not read: arguments, channels and positions, or all but the padding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from normless.doctor.facts.changes import change_at
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS, Call, tensors
from normless.doctor.facts.influence import Padding, find_padding, influence_of
from normless.doctor.findings import Finding, NotAsked, Steps, check, finding

# Outputs are the same if they differ by less than this share of the largest output.
SAME = 1e-6
# Elements with less than this share of the largest influence do not reach the outputs.
FADED = 0.01
# Padding has an influence from this share of that of the other elements.
READ = 0.02
MANY_CHANNELS = 16
# Operations that return a changed copy.
CHANGES = {
    "add", "__add__", "sub", "__sub__", "mul", "__mul__", "div", "__truediv__", "masked_fill", "index_fill",
    "index_add", "scatter", "scatter_add", "clamp", "dropout", "relu", "where", "normalize", "layer_norm",
}  # fmt: skip


@check("inputs that are read")
def check_unread(exam: Examination) -> Steps:
    """Look for inputs without influence on the outputs, and for padding with more influence than the sequence."""
    yield from _thrown_away(exam)
    influence = exam.influence = influence_of(exam)
    if not influence or not any(bool(size.any()) for size in influence.values()):
        raise NotAsked("no gradient reaches the inputs")
    for padding in find_padding(tensors(exam.inputs)):
        found = list(_padded(exam, padding, influence[padding.leaf])) if padding.leaf in influence else []
        yield from found
        if found:
            return "the padding is read in place of the sequences"
    for number, size in influence.items():
        reader = None if bool(size.any()) else _reader(exam, number)
        if reader is not None and _is_unread(exam, number):
            yield finding("discarded_input", (reader.place,), _described(exam, number))
    return f"{len(influence)} inputs, {sum(bool(size.any()) for size in influence.values())} with influence"


def _thrown_away(exam: Examination) -> Iterator[Finding]:
    """Report a changed copy of a tensor that nothing reads, while the tensor itself is read again."""
    flow = exam.passed.flow
    # The last call that reads each.
    read = {source: number for number, call in enumerate(flow.calls) for source in call.sources()}
    kept = {flow.of(tensor) for tensor in tensors((exam.passed.output, [vars(m) for m in exam.model.modules()]))}
    for number, call in enumerate(flow.calls):
        first = call.reads[0][0] if call.reads else None
        if call.name not in CHANGES or not call.is_signal or call in read or call in kept or first is None:
            continue
        if call.shape == call.reads[0][1] and first.kind == "call" and read[first] > number:
            evidence = {"operation": call.name, "line": str(call.line or "")}
            where = () if call.path == LOSS else (call.place,)
            at = f", {call.line}" if call.line else ""
            yield finding("thrown_away", where, evidence, at=at, place="the loss" if not where else call.place)
            return


def unread_parts(exam: Examination) -> Iterator[Finding]:
    """Report inputs, channels and positions that nothing reads; it is for the targets to say whether they matter."""
    padded = {padding.leaf for padding in find_padding(tensors(exam.inputs))}
    for number, size in exam.influence.items():
        if bool(size.any()):
            yield from () if number in padded else _parts(exam, number, size)
        elif _reader(exam, number) is None and _is_unread(exam, number):
            yield finding("unread_input", (), _described(exam, number))


def _described(exam: Examination, number: int) -> dict[str, float | int | str]:
    return {"input": _name(exam, number), "shape": str(tuple(tensors(exam.inputs)[number].shape))}


def _name(exam: Examination, number: int) -> str:
    """Return the name of an input for messages."""
    given = exam.inputs.items() if isinstance(exam.inputs, dict) else ()
    named = [name for name, value in given if isinstance(value, Tensor)]
    if number < len(named):
        return f"input {named[number]!r}"
    return f"input {number + 1}" if len(tensors(exam.inputs)) > 1 else "the input"


def _is_unread(exam: Examination, number: int, where: Tensor | None = None, among: Tensor | None = None) -> bool:
    """Whether other values of an input, or of masked elements from other ones, change no output."""
    x = tensors(exam.inputs)[number]
    places = None if where is None else torch.arange(x.numel()).view(x.shape)[where].flatten()
    change = change_at(exam, number, places, None if among is None else x[among.to(x.device)])
    return float(change.max()) <= SAME * float(exam.evaluated.abs().max())


def _reader(exam: Examination, number: int) -> Call | None:
    """Return the first trained call that reads an input, or a view of it."""
    flow = exam.passed.flow
    given = flow.of(tensors(exam.inputs)[number])
    readers = (call for call in flow.calls if any(source.origin() is given for source in call.sources()))
    return next((call for call in readers if call.is_trained), None)


def _padded(exam: Examination, padding: Padding, size: Tensor) -> Iterator[Finding]:
    """Report padding that is read, or that hides the elements before it."""
    size, real, by = size.reshape(*size.shape[:2], -1).sum(-1), padding.real, padding.by
    padded = (~real).any(1) & real.any(1) & size.any(1)
    if int(padded.sum()) < 2:
        return
    of_real, of_padding = ((size * part)[padded].amax(1) for part in (real, ~real))
    of_padding = of_padding / of_real.clamp_min(1e-30)
    of_real = of_real / size[padded].amax(1)
    evidence: dict[str, float | int | str] = {
        "padding": float((~real).double().mean()),
        "shortest": int(real.sum(1).min()),
        "positions": real.shape[1],
        "influence": float(of_real.median()),
    }
    if float(of_real.median()) < FADED and bool((of_padding > 1).double().mean() > 0.5):
        at = real & padded[:, None]
        is_hidden = not bool((size * at).any()) and _is_unread(exam, padding.leaf, at, at)
        yield finding("inverted_mask" if is_hidden else "read_after_padding", (), evidence)
    elif by is not None and float(of_padding.median()) > READ:
        flow = exam.passed.flow
        given = flow.of(tensors(exam.inputs)[by])
        readers = (call for call in flow.calls if any(source is given for source in call.sources()))
        # Lengths that are only copied by a detach, to the CPU or to Python, mask nothing.
        reads_mask = any(call.name != "detach" and call.path != LOSS for call in readers)
        evidence |= {"influence": float(of_padding.median()), "mask": _name(exam, by)}
        if reads_mask and not _is_unread(exam, padding.leaf, ~real, real):
            yield finding("padding_read", (), evidence)


def _parts(exam: Examination, number: int, size: Tensor) -> Iterator[Finding]:
    """Report channels and positions of an input without influence."""
    x = tensors(exam.inputs)[number]
    if x.dim() < 2 or len(x) < 4:
        return
    for axis in range(1, x.dim()) if x.dim() > 2 or not x.is_floating_point() else (1,):
        rest = [dim for dim in range(x.dim()) if dim != axis]
        read = size.sum(rest) > 0
        varies = (x != x[:1]).movedim(axis, 0).flatten(1).any(1).cpu()
        unread = (~read & varies).nonzero().flatten()
        # Convolutions leave out some positions at the border, and a loss the last one.
        is_channel = x.is_floating_point() and axis == 1 and len(read) <= MANY_CHANNELS
        if not len(unread) or (not is_channel and 2 * len(unread) < len(read)):
            continue
        if _is_unread(exam, number, torch.zeros(x.shape, dtype=torch.bool).index_fill(axis, unread, True)):
            evidence = {"unread": len(unread), "of": len(read), "axis": axis, "first": int(unread[0])}
            yield finding("unread_part", (), evidence, input=_name(exam, number))
            return
