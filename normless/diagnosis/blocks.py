"""The residual blocks: signal and gradient along the skip path, branches that are dead or were never opened."""

from __future__ import annotations

from copy import deepcopy
from math import log2, log10

import numpy as np
import torch

from normless.diagnosis.examination import Check, Cure, Examination, Finding
from normless.probes import probe

SIGNAL, GRADIENT, BRANCHES = "signal along the skip path", "gradient along the skip path", "branches"
# The signal of normalized networks grows with the number n of blocks; growth up to 16 n is no finding.
SIGNAL_MARGIN = 16.0
# With norms on the branches the gradient's norm changes with the root of the number of blocks.
GRADIENT_MARGIN = 32.0
# A trained multiplier this much smaller than the median leaves its branch unused.
UNUSED = 1e-3
_UNSEEN = "not seen: no residual sum could be measured"

_GROWS = (
    "Without normalization a branch has the variance of its skip path, so every sum doubles it: 2^d after d "
    "blocks, d with a norm on the branch (De & Smith, section 2; Zhang et al., equation 1). Gradients grow "
    "alike, and only tiny learning rates are stable (Bjorck et al., section 3.4)."
)
_FADES = (
    "The classifier's input is scaled by the product of the factors of all blocks; once it is tiny, so are the "
    "differences of the logits and the gradients of the earlier layers."
)
_GRADIENT_THEORY = (
    "A learning rate that suits the layers at one end is far too large or too small at the other. The gradient on "
    "the skip path is at least (loss - entropy) / ‖x‖ if all later layers are positively homogeneous (Zhang et "
    "al., theorem 1); a norm after every sum divides it by the growth of that sum (Wang et al. 2022)."
)
_DEAD = (
    "A product has no gradient in any of its factors once two of them are zero: a branch may be initialized to zero "
    "by its multiplier or by its last layer, not both, nor after a ReLU with zero output (Zhang et al., theorem 4)."
)


def check_growth(e: Examination) -> Check:
    """Look for growth or decay of E[x²] that is exponential in depth."""
    table = e.observed("signal")
    if table.empty:
        return Check(SIGNAL, _UNSEEN, asked=False)
    moments = np.concatenate([table["skip_second_moment"].iloc[:1], table["sum_second_moment"]]).astype(float)
    names = list(table["name"])
    if not np.isfinite(moments).all():
        first = int(np.isfinite(moments).argmin())
        block, before = max(first, 1), float(moments[first - 1]) if first else float("nan")
        title = f"Activations are no longer finite at {names[block - 1]}, block {block} of {len(names)}."
        evidence = {"block": block, "blocks": len(names), "second_moment_before": before}
        finding = Finding("overflow", 1.0, title, evidence, (names[block - 1],), _GROWS, _cure(e))
        return Check(SIGNAL, "not finite", (finding,))
    if not moments.all():
        return Check(SIGNAL, f"zero after {names[max(int(moments.astype(bool).argmin()) - 1, 0)]}")
    summary = (
        f"E[x²] from {moments[0]:.3g} before the first of {len(names)} blocks to {moments[-1]:.3g} after the last"
    )
    for grows in (True, False):
        first, last, factor = _largest_rise(np.log2(moments) if grows else -np.log2(moments))
        if factor > SIGNAL_MARGIN * (last - first + 1) and (grows or factor > 2.0**10):
            return Check(SIGNAL, summary, (_exponential(e, names, moments, first, last, factor, grows),))
    return Check(SIGNAL, summary)


def _largest_rise(logarithms: np.ndarray) -> tuple[int, int, float]:
    """The blocks, numbered from 1, over which logarithms to base 2 rise most: the first, the last, and the factor."""
    lowest = np.minimum.accumulate(logarithms)
    last = int((logarithms - lowest)[1:].argmax()) + 1
    first = int(logarithms[: last + 1].argmin()) + 1
    rise = float(logarithms[last] - logarithms[first - 1])
    return min(first, last), last, 2.0**rise


def _exponential(
    e: Examination, names: list[str], moments: np.ndarray, first: int, last: int, factor: float, grows: bool
) -> Finding:
    where, blocks = (names[first - 1], names[last - 1]), last - first + 1
    per_block = float(factor ** (1 / blocks))
    evidence: dict[str, float | int | str] = {
        "factor": factor,
        "factor_per_block": per_block,
        "blocks": blocks,
        "second_moment_before": float(moments[first - 1]),
        "second_moment_behind": float(moments[last]),
    }
    if grows:
        evidence["doubling_would_give"] = 2.0**blocks
        predicted = e.measured.signal.set_index("name")["predicted_sum_variance"].get(where[1], float("nan"))
        if np.isfinite(predicted):
            evidence["predicted_behind"] = float(predicted)
    return Finding(
        "growing_variance" if grows else "fading_signal",
        min(0.99, 0.7 + log2(factor) / 100) if grows else min(1.0, 0.3 + log2(factor) / 40),
        f"The signal {'grows' if grows else 'fades'} {per_block:.2f}-fold per block from {where[0]} to "
        f"{where[1]}: its second moment is {factor:.3g} times {'larger' if grows else 'smaller'} after "
        f"{blocks} blocks.",
        evidence,
        where,
        _GROWS if grows else _FADES,
        _cure(e),
    )


def _cure(e: Examination) -> Cure:
    schemes = e.fitting("skipinit", "fixup", "nf_resnet")
    words = (
        "initialize every branch to zero or scale it by the number of blocks: nl.convert(model, 'skipinit', inputs)"
    )
    return Cure(words + (", or another of these schemes" if len(schemes) > 1 else ""), schemes)


def check_backward(e: Examination) -> Check:
    """Compare the norms of the gradient at the outputs of all blocks."""
    table = e.observed("backward")
    norms = table["gradient_norm"].to_numpy(float)
    if not len(norms):
        return Check(GRADIENT, _UNSEEN, asked=False)
    if not np.isfinite(norms).all():
        return Check(GRADIENT, "not finite")
    if not norms.all():
        reason = "zero: the classifier, or another layer after the blocks, passes none on yet"
        return Check(GRADIENT, reason, asked=False)
    (first, last), explodes = sorted((int(norms.argmax()), int(norms.argmin()))), norms.argmax() < norms.argmin()
    ratio, blocks = float(norms.max() / norms.min()), last - first + 1
    summary = f"‖∂L/∂x‖ from {norms[0]:.3g} after the first block to {norms[-1]:.3g} after the last"
    if ratio <= GRADIENT_MARGIN * blocks:
        return Check(GRADIENT, summary)
    where = (str(table["name"].iloc[first]), str(table["name"].iloc[last]))
    post_norm = any(layer.kind == "norm" for block in e.map.blocks for layer in block.after_sum)
    wanted = ("deepnorm", "t_fixup", "skipinit") if post_norm else ("skipinit", "fixup", "nf_resnet")
    schemes = e.fitting(*wanted)
    finding = Finding(
        "exploding_gradient" if explodes else "vanishing_gradient",
        min(0.75, 0.2 + log10(ratio) / 20),
        f"The gradient {'explodes' if explodes else 'vanishes'} in the backward pass: its norm is {ratio:.3g} times "
        f"{'larger' if explodes else 'smaller'} at {where[0]} than at {where[1]}.",
        {
            "ratio": ratio,
            "blocks": blocks,
            "ratio_per_block": ratio ** (1 / blocks),
            "norm_behind_first": float(norms[0]),
            "norm_behind_last": float(norms[-1]),
        },
        where,
        _GRADIENT_THEORY,
        Cure(f"make the skip path dominate: nl.convert(model, {(*schemes, *wanted)[0]!r}, inputs)", schemes),
    )
    return Check(GRADIENT, summary, (finding,))


def check_branches(e: Examination) -> Check:
    """Look for branches without output and gradients, and for multipliers that stayed near zero in training."""
    if not e.map.blocks:
        return Check(BRANCHES, "there is no residual block", asked=False)
    names = _branch_parameters(e)
    table = e.measured.signal
    silent = list(table.loc[table["branch_variance"] == 0, "name"])
    gradients = _gradients(e) if silent else {}
    dead = [block for block in silent if not any(gradients.get(name, 0.0) for name in names[block])]
    multipliers = {}
    for block, own in names.items():
        if name := next((name for name in own if name.endswith("multiplier")), None):
            multipliers[block] = float(e.model.get_parameter(name).detach().abs().max())
    findings = [_dead(e, dead, multipliers.get(dead[0]) == 0, len(names[dead[0]]))] if dead else []
    trained = {block: value for block, value in multipliers.items() if block not in dead}
    median = sorted(trained.values())[len(trained) // 2] if trained else 0.0
    closed = tuple(block for block, value in trained.items() if value < UNUSED * median)
    if closed:
        findings.append(_unused(closed, trained, median))
    return Check(BRANCHES, f"{len(names)} blocks, {len(silent)} with a branch that is zero so far", tuple(findings))


def _branch_parameters(e: Examination) -> dict[str, list[str]]:
    """The trainable parameters of every block's branch, including a multiplier in its sum."""
    trainable = {name for name, parameter in e.model.named_parameters() if parameter.requires_grad}
    parameters = {}
    for block in e.map.blocks:
        names = [name for layer in block.branch_layers for name in layer.parameters]
        if block.sum is not None:
            names += [f"{block.sum}.{name}" for name, _ in e.model.get_submodule(block.sum).named_parameters()]
        parameters[block.name] = [name for name in dict.fromkeys(names) if name in trainable]
    return parameters


def _gradients(e: Examination) -> dict[str, float]:
    """Norms of the parameters' gradients, with a random classifier where a zero one stops them all."""
    table = e.measured.gradients
    sums = e.measured.backward["gradient_norm"].dropna()
    if e.map.classifier is not None and not sums.empty and sums.iloc[-1] == 0:
        copied = deepcopy(e.model)
        weight = copied.get_submodule(e.map.classifier).get_parameter("weight")
        with torch.no_grad():
            weight.normal_(0, weight.shape[1] ** -0.5, generator=torch.Generator(weight.device).manual_seed(0))
        table = probe(copied, (e.inputs, e.targets), ["gradients"], loss=e.loss, residual_map=e.map).gradients
    return dict(zip(table["parameter"], table["norm"], strict=True))


def _dead(e: Examination, dead: list[str], stuck: bool, parameters: int) -> Finding:
    cause = "its multiplier is stuck at 0, because its factor is zero too" if stuck else "its output is zero"
    return Finding(
        "stuck_multiplier" if stuck else "dead_branch",
        0.5 + 0.4 * len(dead) / e.map.depth,
        f"{len(dead)} of {e.map.depth} branches are dead, as that of {dead[0]}: {cause}, and none of its parameters "
        "gets a gradient.",
        {"dead": len(dead), "blocks": e.map.depth, "parameters_without_gradient": parameters},
        tuple(dead),
        _DEAD,
        Cure(
            "initialize one factor of the branch other than zero: SkipInit's multiplier is zero and the weights are "
            "not (skipinit), Fixup's last layer is zero and the multiplier is 1 (fixup); a branch closed by ReLUs "
            "needs a smaller learning rate or another initialization",
            e.fitting("skipinit", "fixup"),
        ),
    )


def _unused(closed: tuple[str, ...], multipliers: dict[str, float], median: float) -> Finding:
    first = multipliers[closed[0]]
    return Finding(
        "branch_never_grew",
        0.2 + 0.3 * len(closed) / len(multipliers),
        f"{len(closed)} of {len(multipliers)} branches never grew, as that of {closed[0]}: its multiplier is "
        f"{first:.2g}, the median {median:.2g}.",
        {"closed": len(closed), "multiplier": first, "median_multiplier": median},
        closed,
        "A block with a closed branch is its skip path: its layers cost time and change nothing.",
        Cure(
            "do not decay multipliers and train them at the full rate: nl.param_groups(model, lr=…, weight_decay=…); "
            "or remove these blocks"
        ),
    )
