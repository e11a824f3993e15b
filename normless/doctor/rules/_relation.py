"""Checks of targets against inputs: contradictions, indices as quantities, padding, unrelated and moved labels."""

from __future__ import annotations

from collections.abc import Iterator
from math import log, sqrt

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from normless.doctor._findings import Finding, FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.experiments._engine import MANY, is_fitted, tried
from normless.doctor.facts._changes import before_end
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._relations import IGNORED
from normless.doctor.facts._tracer import reals
from normless.probes.hooks._losses import loss_of
from normless.probes.hooks._observe import compute_output
from normless.state import preserve_state

# Class indices are judged as quantities from this number of classes, and if this share of them can be told apart.
CLASSES, APART = 5, 0.7
# The largest correlation of the distance between two classes and the difference of their indices.
ORDERED = 0.4
# Labels are compared with those of neighbours in batches of this size, up to this number of examples.
LEAST, MOST = 500, 2000
# Inputs of more values are not compared.
MANY_VALUES = 10**7
# Neighbours agree by chance if they agree more rarely than this many standard deviations above it.
DEVIATIONS = 2.5
# Of steps on half of the examples, the share of the loss of guessing that the other half must reach.
CLEARLY = 0.97
# The share of examples with a contradiction, and of padding, that is a finding.
CONTRADICTIONS, PADDING = 0.25, 0.5
# Texts have an end token if this share of several of them ends in the same one.
MOST_ENDS, SEVERAL = 0.9, 4
# Fewer or smaller images say nothing of the place of targets; of so many values, correlations take seconds.
IMAGES, SIDE, MANY_PIXELS = 8, 8, 4 * 10**6
# A correlation counts from this multiple of the largest one of noise, √(2 log N) deviations among N; targets are
# moved if it is so many times that where they lie, and so many positions away.
ABOVE, TIMES, FAR = 1.2, 2.0, 2
# Targets of which this share is moved are apart from their inputs, unless nearly all are moved in fewer ways than a
# share of them, which a network can learn.
MOVED, ALL, WAYS = 0.25, 0.9, 0.25
_REGRESSIONS = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}


@check("relation of inputs and targets", needs="steps")
def check_relation(exam: Examination) -> Steps:
    """Look for targets that contradict each other, do not belong to the inputs, or are padding."""
    targets = exam.targets
    if not isinstance(targets, Tensor) or targets.is_complex() or not targets.numel() or not targets.dim():
        raise NotAsked("the targets are no tensor of real numbers")
    yield from _nothing_counts(exam, targets)
    sequences = [t for t in exam.given if t.shape == targets.shape and not t.is_floating_point()]
    if sequences and targets.dim() == 2 and not targets.is_floating_point() and targets.shape[1] > 1:
        yield from _padding(exam, sequences[0], targets)
        yield from _uncounted_end(sequences[0], targets)
    x = _vectors(exam, len(targets))
    labels = targets.reshape(len(targets), -1)
    if x is None or labels.shape[1] != 1:
        return "there is not one target for each example"
    labels = labels[:, 0]
    if any(made.call.name in _REGRESSIONS for made in exam.passed.losses):
        yield from _indices(x, labels)
    if not labels.is_floating_point():
        yield from _contradictions(x, labels)
        if exam.logits.dim() == 2:
            classes = exam.logits.shape[1]
            absent = sorted(set(range(classes)) - set(labels.tolist()))
            if absent and len(absent) < classes - 1 and len(labels) >= 8 * classes:
                yield finding("absent_class", (), {"class": absent[0], "absent": len(absent), "classes": classes})
            yield from _unrelated(exam, x, labels)
    return f"{torch.unique(labels).numel()} different targets of {len(labels)} examples"


def _nothing_counts(exam: Examination, targets: Tensor) -> Iterator[Finding]:
    """Report a loss that is exactly zero, with all gradients, and a column of the targets that is zero throughout."""
    gradients = exam.passed.reached
    if exam.passed.loss != 0.0 or not gradients or any(gradients.values()):
        return
    columns = targets.reshape(len(targets), -1)
    zero = [] if columns.shape[1] < 2 else [*(~columns.any(0)).nonzero().flatten().tolist()]
    words = f": column {zero[0]} of the targets is 0 for all examples" if zero else ""
    yield finding("zero_loss", (), {"examples": len(targets), "parameters": len(gradients)}, words=words)


def _vectors(exam: Examination, examples: int) -> Tensor | None:
    """Return all inputs of each example as one vector; None if they are large, sparse, or not a row for each."""
    given = [tensor.detach() for tensor in exam.given if tensor.numel()]
    if not given or any(t.layout != torch.strided or t.is_complex() or not t.dim() for t in given):
        return None
    if any(len(t) != examples for t in given) or sum(t.numel() for t in given) > MANY_VALUES:
        return None
    return torch.cat([t.reshape(examples, -1).double() for t in given], 1)


def _contradictions(x: Tensor, labels: Tensor) -> Iterator[Finding]:
    """Report equal inputs with different class labels."""
    distinct, index = torch.unique(x, dim=0, return_inverse=True)
    pairs = torch.unique(torch.stack([index, labels.to(index.device)], 1), dim=0)
    clashing = torch.bincount(pairs[:, 0], minlength=len(distinct)) > 1
    share = float(clashing[index].double().mean())
    if share >= CONTRADICTIONS:
        # Actions of a policy may differ in the same state, and states of few numbers recur.
        evidence: FindingEvidence = {"share": share, "examples": len(x), "distinct": len(distinct)}
        yield finding("contradicting_labels", (), evidence, advice=bool((x == x.round()).all()))


def _indices(x: Tensor, labels: Tensor) -> Iterator[Finding]:
    """Report a regression of class indices whose order means nothing: close indices have no closer inputs."""
    classes, index = torch.unique(labels, return_inverse=True)
    is_whole = bool((classes == torch.arange(len(classes), device=classes.device)).all())
    counts = torch.bincount(index)
    if not is_whole or len(classes) < CLASSES or int(counts.min()) < 4 or len(classes) > len(labels) // 8:
        return
    centers = torch.stack([x[index == label].mean(0) for label in range(len(classes))])
    distances = torch.cdist(x, centers)
    # Without the example itself, the center of its class is farther away.
    n = counts[index].double()
    distances[torch.arange(len(x)), index] *= n / (n - 1)
    apart = float((distances.argmin(1) == index).double().mean())
    first, second = torch.triu_indices(len(classes), len(classes), 1)
    between = torch.cdist(centers, centers)[first, second]
    order = float(torch.corrcoef(torch.stack([between, (second - first).double()]))[0, 1])
    evidence: FindingEvidence = {"classes": len(classes), "told_apart": apart, "correlation": order}
    yield finding("regressed_indices", (), evidence, advice=not (apart > APART and order < ORDERED))


def _unrelated(exam: Examination, x: Tensor, labels: Tensor) -> Iterator[Finding]:
    """Report labels that agree with those of the nearest neighbours by chance only."""
    # The distances of tokens and identifiers mean nothing.
    if any(not tensor.is_floating_point() for tensor in exam.given):
        return
    if len(x) < LEAST or not exam.trials or is_fitted(exam):
        return
    x, labels = x[:MOST], labels[:MOST]
    x = (x - x.mean(0)) / x.std(0).clamp(min=1e-12)
    nearest = torch.cdist(x, x).fill_diagonal_(torch.inf).argmin(1)
    agree = float((labels[nearest] == labels).double().mean())
    shares = torch.bincount(labels - labels.min()).double() / len(labels)
    chance = float(shares.square().sum())
    limit = chance + DEVIATIONS * (chance * (1 - chance) / len(labels)) ** 0.5
    if shares.gt(0).sum() > 1 and agree <= limit and not _generalizes(exam):
        yield finding("unrelated_labels", (), {"agreement": agree, "chance": chance})


def _generalizes(exam: Examination) -> bool:
    """Whether steps on every second example lower the loss of the others below that of guessing."""
    assert exam.optimizer is not None
    batch = exam.inputs, exam.targets
    seen, rest = (tree_map(lambda t, start=start: t[start::2], batch) for start in (0, 1))
    model, _ = tried(exam.changed(inputs=seen[0], targets=seen[1]), exam.optimizer, MANY)
    with preserve_state(model, training=False), torch.no_grad():
        loss = float(loss_of(exam.loss, compute_output(model, rest[0]), *rest))
    return loss < CLEARLY * exam.guessing


def _padding(exam: Examination, tokens: Tensor, targets: Tensor) -> Iterator[Finding]:
    """Report padding at the end of sequences whose targets count in the loss."""
    pad, both = targets[:, -1].mode().values, ~(before_end(targets) | before_end(tokens))
    share, lengths = float(both.double().mean()), both.sum(1)
    if share < PADDING / 2 or torch.unique(lengths).numel() < 2 or int(lengths.max()) < 3:
        return
    for made in exam.passed.losses:
        is_counted = made.call.name in ("cross_entropy", "nll_loss") and made.values["ignore_index"] != int(pad)
        if is_counted and made.values["target"].numel() == targets.numel() and made.values["reduction"] != "none":
            weight = made.values["weight"]
            if weight is None or bool(weight[int(pad)]):
                evidence: FindingEvidence = {"share": share, "token": int(pad)}
                yield finding("padding_counts", (), evidence, advice=share < PADDING)
                return


def _uncounted_end(tokens: Tensor, targets: Tensor) -> Iterator[Finding]:
    """Report texts whose end is never counted, since the token that ends them is the padding, which is ignored.

    The labels of a language model are its tokens. Where a token of its own ends each text, the last counted one is
    the same in all of them.
    """
    is_counted = targets != IGNORED
    padding = tokens[~is_counted]
    if not len(padding) or bool((padding != padding[0]).any()) or bool((tokens[is_counted] == padding[0]).any()):
        return
    is_text = bool((targets[is_counted] == tokens[is_counted]).all())
    ends_padded = ~is_counted[:, -1] & is_counted.any(1)
    is_suffix = bool((is_counted.long().diff(dim=1) <= 0).all())
    if not (is_text and is_suffix) or int(ends_padded.sum()) < SEVERAL:
        return
    last = targets.gather(1, is_counted.sum(1, keepdim=True).clamp(min=1) - 1)[ends_padded]
    if float((last == last.mode(0).values).double().mean()) < MOST_ENDS:
        evidence: FindingEvidence = {"class": int(padding[0]), "texts": len(last), "ends": len(torch.unique(last))}
        yield finding("uncounted_end", (), evidence)


@check("place of the targets", needs="pass")
def check_place(exam: Examination) -> Steps:
    """Correlate targets (examples, …, height, width) with inputs at all shifts and flips, for each example."""
    y = exam.targets
    is_map = isinstance(y, Tensor) and y.dim() in (3, 4) and not y.is_complex() and (y.dim() == 3 or y.shape[1] == 1)
    images = [x for x in reals(exam.inputs) if is_map and x.dim() == 4 and len(x) == len(y)]
    images = [x for x in images if x.shape[-2:] == y.shape[-2:] and min(x.shape[-2:]) >= SIDE and len(x) >= IMAGES]
    if not images:
        raise NotAsked("the targets have no value for each position of images")
    number = min(len(y), MANY_PIXELS // images[0][0].numel())
    if number < IMAGES:
        raise NotAsked(f"{IMAGES} images have more than {MANY_PIXELS:.0e} values")
    masks = y.detach().double().reshape(len(y), *y.shape[-2:])[:number]
    moved, seen = _moves(images[0].detach().double()[:number], masks)
    differs = len(set(moved)) >= max(2, WAYS * len(moved)) or len(moved) < ALL * seen
    if seen >= IMAGES and len(moved) > MOVED * seen and differs:
        evidence: FindingEvidence = {"moved": len(moved), "examples": seen, "ways": len(set(moved))}
        yield finding("moved_targets", (), evidence)
    return f"{len(moved)} of {seen} that correlate with their images lie elsewhere"


def _moves(x: Tensor, y: Tensor) -> tuple[list[tuple[int, int]], int]:
    """Return the flips and shifts of targets that lie elsewhere, and the number of those that correlate anywhere."""
    height, width = y.shape[-2:]
    spectrum = torch.fft.fft2(x - x.mean((2, 3), keepdim=True))
    moved: list[tuple[int, int]] = []
    seen = 0
    # Correlations (flips, examples, channels, shifts), with those of no shift first.
    flipped = torch.stack([(y - y.mean((1, 2), keepdim=True)).flip(axes) for axes in ((), (-2,), (-1,), (-2, -1))])
    at = torch.fft.ifft2(spectrum * torch.fft.fft2(flipped).unsqueeze(2).conj()).real.abs().flatten(3)
    for own in at.unbind(1):
        of_channel = own[:, int(own.amax((0, 2)).argmax())]
        peak, here = float(of_channel.max()), float(of_channel[0, 0])
        deviation = float(of_channel.square().mean().sqrt())
        if peak < ABOVE * sqrt(2 * log(own.numel())) * deviation:
            continue
        seen += 1
        flip, shift = divmod(int(of_channel.argmax()), height * width)
        row, column = divmod(shift, width)
        distance = max(min(row, height - row), min(column, width - column))
        if peak > TIMES * here and (flip or distance > FAR):
            moved.append((flip, shift))
    return moved, seen
