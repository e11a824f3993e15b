"""Checks of information that never reaches the outputs: inputs, channels, positions, their order, and first steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import combinations
from math import inf, prod
from operator import is_

import torch
from torch import Tensor, nn

from normless.doctor._findings import Finding, FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.experiments._engine import Experiment, is_fitted
from normless.doctor.facts._changes import Padding, altered, change_at, change_of, find_padding, influence_of
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._flow import TensorCall
from normless.doctor.facts._tracer import REFUSED, tensors, with_leaf
from normless.doctor.rules._trials import HALF, is_slow, trial_with
from normless.probes.hooks._losses import loss_of
from normless.probes.hooks._observe import compute_output
from normless.state import preserve_random_state, preserve_state, quiet

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
# Outputs count as equal if they differ by less than this share of the differences between examples.
EQUAL = 1e-4
# A path of one number suffices for outputs with fewer values for each example.
SEVERAL = 3
# Sequences of at least this length are judged, by this share of their steps at either end.
LENGTH, SHARE = 20, 0.25
# The influence of the first steps is that of the last ones times a factor beyond this one.
FACTOR = 1e4
_OF_ATTENTION = {"softmax", "multi_head_attention_forward"}


@check("inputs that are read", needs="pass")
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
    # Integers that are not indices of an embedding, such as time steps, have no gradient.
    others = (number for number, x in enumerate(exam.given) if number not in influence and _is_varied(x))
    influence |= {number: torch.zeros(exam.given[number].shape) for number in others if _is_unread(exam, number)}
    for number in [number for number, size in influence.items() if not bool(size.any())]:
        if _is_target(exam, number):
            del influence[number]
        elif (reader := _reader(exam, number)) is not None and _is_unread(exam, number):
            yield finding("discarded_input", (reader.place,), _described(exam, number))
    return f"{len(influence)} inputs, {sum(bool(size.any()) for size in influence.values())} with influence"


def _is_target(exam: Examination, number: int) -> bool:
    """Whether the network computes a loss from an input: other values of it change the loss, by the outputs alone."""
    x, losses = exam.given[number], list[Tensor]()
    with suppress(*REFUSED), preserve_state(exam.model, training=True), torch.no_grad(), quiet():
        for inputs in (exam.inputs, with_leaf(exam.inputs, number, altered(x, torch.arange(x.numel())))):
            with preserve_random_state(exam.model):
                losses.append(loss_of(exam.loss, compute_output(exam.model, inputs), exam.inputs, exam.targets))
    return len(losses) == 2 and float((losses[1] - losses[0]).abs()) > SAME * float(losses[0].abs())


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
        elif not _leads_to_outputs(exam, number) and _is_unread(exam, number):
            evidence = _described(exam, number)
            yield finding("unread_input", (), evidence, advice=not exam.knows("not_fitted"))


def _is_varied(x: Tensor) -> bool:
    """Whether integers differ between examples."""
    is_integer = not (x.is_floating_point() or x.is_complex()) and x.layout == torch.strided and x.dtype != torch.bool
    return is_integer and x.dim() > 0 and bool((x != x[:1]).any())


def _leads_to_outputs(exam: Examination, number: int) -> bool:
    """Whether calls lead from an input to the outputs, even if a gate that starts at zero lets nothing pass."""
    given = exam.flow.of(exam.given[number])
    return any(source is given for call in exam.last.reached(lambda _: False) for source in call.sources())


def _described(exam: Examination, number: int) -> FindingEvidence:
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


def _reader(exam: Examination, number: int) -> TensorCall | None:
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


@check("information", needs="end")
def check_information(exam: Examination) -> Steps:
    """Look for a layer of one unit that everything passes, and for outputs that ignore the order of a sequence."""
    narrow = _narrow(exam)
    if narrow is not None:
        # An autoencoder of one dimension is a choice, if it can be fitted.
        yield finding("one_unit", narrow.where, {"outputs": prod(exam.logits.shape[1:])}, advice=is_fitted(exam))
    yield from _unordered(exam)
    is_missed = exam.knows("not_fitted") or exam.knows("cancelled_gradient")
    given = ((number, x) for number, x in enumerate(exam.given) if x.dim() and x.is_floating_point())
    for (first, x), (second, y) in combinations(given, 2):
        if x.shape == y.shape and x.data_ptr() != y.data_ptr() and torch.equal(x, y):
            yield finding("equal_inputs", (), {"first": first, "second": second}, advice=not is_missed)
    yield from unread_parts(exam)
    return "one number" if narrow is not None else "no layer of one unit is passed by everything"


def _narrow(exam: Examination) -> TensorCall | None:
    """Return the weight layer with one output for each example through which all inputs reach the outputs."""
    logits, last = exam.logits, exam.last
    if logits.dim() < 2 or logits[0].numel() < SEVERAL:
        return None
    for event in exam.events("weight"):
        shape = event.output.shape
        if len(shape) > 1 and shape[0] == len(logits) and prod(shape[1:]) == 1 and event.call is not last:
            # Values of unknown origin may be inputs.
            around = last.reached(partial(is_, event.call))
            if not any(other.kind in ("inputs", "unknown") for other in around):
                return event.call
    return None


def _unordered(exam: Examination) -> Iterator[Finding]:
    """Report outputs that do not change if the positions of the inputs are permuted, while the targets may."""
    x = exam.inputs
    if not isinstance(x, Tensor) or x.is_sparse or x.dim() not in (2, 3) or x.shape[1] < SEVERAL or not len(x) > 1:
        return
    attends = any(event.call.layer == "attention" or event.call.name in _OF_ATTENTION for event in exam.passed.events)
    is_sequence = attends or any(event.call.name == "embedding" for event in exam.passed.events)
    if not is_sequence or (x.dim() == 2 and x.is_floating_point()) or exam.evaluated.dim() != 2:
        return
    change = float(change_of(exam, x.flip(1)).max())
    if not change <= EQUAL * exam.apart or not 0 < exam.apart < inf:
        return
    pairs = _same_but_for_order(x, exam.targets)
    evidence = {"positions": x.shape[1], "change": change, "differences": exam.apart, "pairs": pairs}
    # Sets and bags of words have no order; targets that depend on it, or a batch that cannot be fitted, tell.
    may_miss = attends and not x.is_floating_point() and is_slow(exam)
    is_wrong = pairs > 0 or exam.knows("not_fitted") or (may_miss and _is_helped_by_positions(exam))
    yield finding("unordered", (), evidence, grade=pairs > 0, advice=not is_wrong)


def _is_helped_by_positions(exam: Examination) -> bool:
    """Whether trial steps get much lower if each position has a vector of its own, added to its embedding."""

    def add_positions(_: nn.Module, __: object, output: Tensor) -> Tensor:
        places = torch.randn(output.shape[1:], generator=torch.Generator().manual_seed(0)).to(output)
        return output + output.detach().std() * places

    def alter(network: nn.Module, _: object) -> None:
        for layer in network.modules():
            if isinstance(layer, nn.Embedding):
                layer.register_forward_hook(add_positions)

    return trial_with(exam, Experiment(alter=alter)).end < HALF * trial_with(exam).end


def _same_but_for_order(x: Tensor, y: object) -> int:
    """Count the pairs of neighbours in sorted order that have the same elements and different class labels."""
    if not isinstance(y, Tensor) or y.shape != x.shape[:1] or y.is_floating_point() or x.dim() != 2:
        return 0
    sets: dict[tuple[int, ...], set[int]] = {}
    for row, label in zip(x.sort(1).values.tolist(), y.tolist(), strict=True):
        sets.setdefault(tuple(row), set()).add(label)
    return sum(len(labels) - 1 for labels in sets.values())


@check("gradient through time", needs="end")
def check_time(exam: Examination) -> Steps:
    """Compare the gradients of the loss with respect to the first and the last steps of the inputs.

    A network that fits the batch, or comes close, does not need the steps that fade.
    """
    ratios = {number: ratio for number, size in exam.influence.items() if (ratio := _ratio(exam, size)) is not None}
    if not ratios:
        raise NotAsked(f"there are no sequences of {LENGTH} steps or more")
    is_stuck = exam.knows("not_fitted")
    for number, ratio in ratios.items() if is_stuck or is_slow(exam) else ():
        if not 1 / FACTOR < ratio < FACTOR:
            evidence: FindingEvidence = {"ratio": max(ratio, 1 / ratio if ratio else inf), "input": number}
            kind = "exploding_through_time" if ratio > 1 else "vanishing_through_time"
            # Slow steps alone do not tell that the first elements matter: a batch may be learned from the last ones.
            yield finding(kind, (), evidence, advice=not is_stuck)
    return f"first steps have {', '.join(f'{ratio:.2g}' for ratio in ratios.values())} times that of the last"


def _ratio(exam: Examination, size: Tensor) -> float | None:
    """Return the influence of the first steps relative to that of the last ones; None if there are no steps."""
    axis = 1 if size.shape[:1] == exam.logits.shape[:1] else 0
    if size.dim() not in (2, 3) or size.shape[axis] < LENGTH:
        return None
    steps = size.movedim(axis, 0).flatten(1).sum(1)
    count = int(SHARE * len(steps))
    first, last = float(steps[:count].max()), float(steps[-count:].max())
    # Inputs that nothing reads are another finding.
    return first / last if last > 0 and first > 0 else None
