"""Checks of targets against inputs: contradictions, indices as quantities, padding that counts, unrelated labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from normless.doctor.experiments.engine import fits, tried
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import tensors
from normless.doctor.facts.relations import IGNORED
from normless.doctor.findings import Evidence, Finding, NotAsked, Steps, check, finding
from normless.probes import compute_output, loss_of, preserve_state

# Class indices are judged as quantities from this number of classes, and if this share of them can be told apart.
CLASSES, APART = 5, 0.7
# The largest correlation of the distance between two classes and the difference of their indices.
ORDERED = 0.4
# Labels are compared with those of neighbours in batches of this size, up to this number of examples.
MANY, MOST = 500, 2000
# Inputs of more values are not compared.
MANY_VALUES = 10**7
# Neighbours agree by chance if they agree more rarely than this many standard deviations above it.
DEVIATIONS = 2.5
# Steps on half of the examples, and the share of the loss of guessing that the other half must reach.
STEPS, CLEARLY = 60, 0.97
# The share of examples with a contradiction, and of padding, that is a finding.
CONTRADICTIONS, PADDING = 0.25, 0.5
# Texts have an end token if this share of several of them ends in the same one.
MOST_ENDS, SEVERAL = 0.9, 4
_REGRESSIONS = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}


@check("relation of inputs and targets")
def check_relation(exam: Examination) -> Steps:
    """Look for targets that contradict each other, do not belong to the inputs, or are padding."""
    targets = exam.targets
    if not isinstance(targets, Tensor) or targets.is_complex() or not targets.numel() or not targets.dim():
        raise NotAsked("the targets are no tensor of real numbers")
    yield from _nothing_counts(exam, targets)
    yield from _padding(exam, targets)
    yield from _uncounted_end(exam, targets)
    x = _vectors(exam, len(targets))
    labels = targets.reshape(len(targets), -1)
    if x is None or labels.shape[1] != 1:
        return "there is not one target for each example"
    labels = labels[:, 0]
    yield from _contradictions(x, labels)
    if any(made.call.name in _REGRESSIONS for made in exam.passed.losses):
        yield from _indices(x, labels)
    if not labels.is_floating_point() and exam.passed.logits.dim() == 2:
        yield from _absent(labels, exam.passed.logits.shape[1])
        yield from _unrelated(exam, x, labels)
    return f"{torch.unique(labels).numel()} different targets of {len(labels)} examples"


def _nothing_counts(exam: Examination, targets: Tensor) -> Iterator[Finding]:
    """Report a loss that is exactly zero, with all gradients, and a column of the targets that is zero throughout."""
    gradients = [norm for norm in exam.passed.gradients.values() if norm is not None]
    if exam.passed.loss != 0.0 or not gradients or any(gradients):
        return
    columns = targets.reshape(len(targets), -1)
    zero = [] if columns.shape[1] < 2 else [*(~columns.any(0)).nonzero().flatten().tolist()]
    words = f": column {zero[0]} of the targets is 0 for all examples" if zero else ""
    yield finding("zero_loss", (), {"examples": len(targets), "parameters": len(gradients)}, words=words)


def _vectors(exam: Examination, examples: int) -> Tensor | None:
    """Return all inputs of each example as one vector; None if they are large, sparse, or not a row for each."""
    given = [tensor.detach() for tensor in tensors(exam.inputs) if tensor.numel()]
    if not given or any(t.layout != torch.strided or t.is_complex() or not t.dim() for t in given):
        return None
    if any(len(t) != examples for t in given) or sum(t.numel() for t in given) > MANY_VALUES:
        return None
    return torch.cat([t.reshape(examples, -1).double() for t in given], 1)


def _contradictions(x: Tensor, labels: Tensor) -> Iterator[Finding]:
    """Report equal inputs with different class labels."""
    if labels.is_floating_point():
        return
    distinct, index = torch.unique(x, dim=0, return_inverse=True)
    pairs = torch.unique(torch.stack([index, labels.to(index.device)], 1), dim=0)
    clashing = torch.bincount(pairs[:, 0], minlength=len(distinct)) > 1
    share = float(clashing[index].double().mean())
    if share >= CONTRADICTIONS:
        evidence: Evidence = {"share": share, "examples": len(x), "distinct": len(distinct)}
        found = finding("contradicting_labels", (), evidence)
        # Actions of a policy may differ in the same state, and states of few numbers recur.
        yield replace(found, advice=bool((x == x.round()).all()))


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
    evidence: Evidence = {"classes": len(classes), "told_apart": apart, "correlation": order}
    yield replace(finding("regressed_indices", (), evidence), advice=not (apart > APART and order < ORDERED))


def _absent(labels: Tensor, classes: int) -> Iterator[Finding]:
    """Report classes of the network that no label has, in a batch of many examples for each class."""
    absent = sorted(set(range(classes)) - set(labels.tolist()))
    if absent and len(absent) < classes - 1 and len(labels) >= 8 * classes:
        yield finding("absent_class", (), {"class": absent[0], "absent": len(absent), "classes": classes})


def _unrelated(exam: Examination, x: Tensor, labels: Tensor) -> Iterator[Finding]:
    """Report labels that agree with those of the nearest neighbours by chance only."""
    # The distances of tokens and identifiers mean nothing.
    if any(not tensor.is_floating_point() for tensor in tensors(exam.inputs)):
        return
    if len(x) < MANY or not exam.trials or any(fits(exam, trial) for trial in exam.trials):
        return
    x, labels = x[:MOST], labels[:MOST]
    x = (x - x.mean(0)) / x.std(0).clamp(min=1e-12)
    distances = torch.cdist(x, x).fill_diagonal_(torch.inf)
    agree = float((labels[distances.argmin(1)] == labels).double().mean())
    shares = torch.bincount(labels - labels.min()).double() / len(labels)
    chance = float(shares.square().sum())
    limit = chance + DEVIATIONS * (chance * (1 - chance) / len(labels)) ** 0.5
    linear = _linear_probe(x, labels)
    most = float(shares.max())
    best = most + DEVIATIONS * (most * (1 - most) / (len(labels) // 2)) ** 0.5
    if shares.gt(0).sum() > 1 and agree <= limit and linear <= best and not _generalizes(exam):
        evidence: Evidence = {"agreement": agree, "chance": chance, "linear": linear, "most_frequent": most}
        yield finding("unrelated_labels", (), evidence)


def _generalizes(exam: Examination) -> bool:
    """Whether steps on every second example lower the loss of the others below that of guessing."""
    assert exam.optimizer is not None
    given, labels = exam.inputs, exam.targets
    seen, rest = (tree_map(lambda t, start=start: t[start::2], (given, labels)) for start in (0, 1))
    model, _ = tried(exam.changed(inputs=seen[0], targets=seen[1]), exam.optimizer, STEPS)
    with preserve_state(model, training=False), torch.no_grad():
        loss = float(loss_of(exam.loss, compute_output(model, rest[0]), *rest))
    return loss < CLEARLY * exam.guessing


def _linear_probe(x: Tensor, labels: Tensor) -> float:
    """Return the accuracy on every second example of a linear classifier fitted to the others by least squares."""
    ones = torch.ones(len(x), 1, dtype=x.dtype, device=x.device)
    x = torch.cat([x, ones], 1)
    hot = torch.nn.functional.one_hot(labels - labels.min()).to(x)
    a, b = x[::2], hot[::2]
    ridge = 1e-2 * len(a) * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    weights = torch.linalg.solve(a.T @ a + ridge, a.T @ b)
    return float(((x[1::2] @ weights).argmax(1) == hot[1::2].argmax(1)).double().mean())


def _padding(exam: Examination, targets: Tensor) -> Iterator[Finding]:
    """Report padding at the end of sequences whose targets count in the loss."""
    sequences = [t for t in tensors(exam.inputs) if t.shape == targets.shape and not t.is_floating_point()]
    if targets.dim() != 2 or targets.is_floating_point() or not sequences or targets.shape[1] < 2:
        return
    tokens = sequences[0]
    pad, read = targets[:, -1].mode().values, tokens[:, -1].mode().values
    # From the last position backwards, as long as both are padding.
    both = ((targets == pad) & (tokens == read)).flip(1).long().cumprod(1).flip(1).bool()
    share = float(both.double().mean())
    lengths = both.sum(1)
    if share < PADDING / 2 or torch.unique(lengths).numel() < 2 or int(lengths.max()) < 3:
        return
    for made in exam.passed.losses:
        is_counted = made.call.name in ("cross_entropy", "nll_loss") and made.values["ignore_index"] != int(pad)
        if is_counted and made.values["target"].numel() == targets.numel() and made.values["reduction"] != "none":
            weight = made.values["weight"]
            if weight is None or bool(weight[int(pad)]):
                found = finding("padding_counts", (), {"share": share, "token": int(pad)})
                yield replace(found, advice=share < PADDING)
                return


def _uncounted_end(exam: Examination, targets: Tensor) -> Iterator[Finding]:
    """Report texts whose end is never counted, since the token that ends them is the padding, which is ignored.

    The labels of a language model are its tokens. Where a token of its own ends each text, the last counted one is
    the same in all of them.
    """
    given = [t for t in tensors(exam.inputs) if t.shape == targets.shape and not t.is_floating_point()]
    if targets.dim() != 2 or targets.is_floating_point() or not given or targets.shape[1] < 2:
        return
    tokens, is_counted = given[0], targets != IGNORED
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
        evidence: Evidence = {
            "class": int(padding[0]),
            "texts": int(ends_padded.sum()),
            "ends": len(torch.unique(last)),
        }
        yield finding("uncounted_end", (), evidence)
