"""The residual blocks: signal and gradient along the skip path, branches that are dead or were never opened."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from math import log2, log10

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.diagnosis.examination import Check, Examination
from normless.probes import Watcher, probe
from normless.residual import Layer

SIGNAL, GRADIENT, BRANCHES = "signal along the skip path", "gradient along the skip path", "branches"
# The signal of normalized networks grows with the number n of blocks; growth up to 16 n is no finding.
SIGNAL_MARGIN = 16.0
# With norms on the branches the gradient's norm changes with the root of the number of blocks.
GRADIENT_MARGIN = 32.0
# A trained multiplier this much smaller than the median leaves its branch unused.
UNUSED = 1e-3
# Of ReLUs alone about forty leave this share of the difference between two uncorrelated examples.
LEFT = 0.02
_UNSEEN = "not seen: no residual sum could be measured"


@dataclass
class Correlations(Watcher):
    """The mean cosine of two examples in what each weight layer reads, by its path."""

    rows: dict[str, float] = field(default_factory=dict, init=False)

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Measure what the layer reads; numbers of tokens have no cosine."""
        if layer.kind == "weight" and len(x) > 1 and x.is_floating_point():
            total = F.normalize(x.flatten(1).double(), dim=1).sum(0).square().sum()
            self.rows[layer.path] = float(total / len(x) - 1) / (len(x) - 1)

    def table(self) -> pd.DataFrame:
        """A row per layer in execution order."""
        return pd.DataFrame(self.rows.items(), columns=["layer", "correlation"])


def check_plain(e: Examination) -> Check:
    """Look for examples that a network without skip paths makes alike."""
    table = e.measured.Correlations
    if len(table) < 2:
        return Check(SIGNAL, _UNSEEN, asked=False)
    before, behind = (float(table["correlation"].iloc[place]) for place in (0, -1))
    summary = f"no skip path; correlation of two examples from {before:.3g} to {behind:.3g} after {len(table)} layers"
    if not 1 - behind < LEFT * (1 - before):
        return Check(SIGNAL, summary)
    evidence = {"correlation_before": before, "correlation_behind": behind, "layers": len(table)}
    return Check(SIGNAL, summary, (e.finding("alike_examples", 0.6, [table["layer"].iloc[-1]], evidence),))


def check_growth(e: Examination) -> Check:
    """Look for growth or decay of E[x²] that is exponential in depth."""
    if not e.map.blocks:
        return check_plain(e)
    table = e.observed("signal")
    if table.empty:
        return Check(SIGNAL, _UNSEEN, asked=False)
    moments = np.concatenate([table["skip_second_moment"].iloc[:1], table["sum_second_moment"]]).astype(float)
    names = list(table["name"])
    if not np.isfinite(moments).all():
        first = int(np.isfinite(moments).argmin())
        block, before = max(first, 1), float(moments[first - 1]) if first else float("nan")
        evidence = {"block": block, "blocks": len(names), "second_moment_before": before}
        return Check(SIGNAL, "not finite", (e.finding("overflow", 1.0, [names[block - 1]], evidence),))
    if not moments.all():
        return Check(SIGNAL, f"zero after {names[max(int(moments.astype(bool).argmin()) - 1, 0)]}")
    summary = (
        f"E[x²] from {moments[0]:.3g} before the first of {len(names)} blocks to {moments[-1]:.3g} after the last"
    )
    for grows in (True, False):
        first, last, factor = _largest_rise(np.log2(moments) if grows else -np.log2(moments))
        where, blocks = (names[first - 1], names[last - 1]), last - first + 1
        if factor <= SIGNAL_MARGIN * blocks or (factor <= 2.0**10 and not grows):
            continue
        evidence = {
            "factor": factor,
            "factor_per_block": float(factor ** (1 / blocks)),
            "blocks": blocks,
            "second_moment_before": float(moments[first - 1]),
            "second_moment_behind": float(moments[last]),
        }
        severity = min(0.99, 0.7 + log2(factor) / 100) if grows else min(1.0, 0.3 + log2(factor) / 40)
        if grows:
            evidence["doubling_would_give"] = 2.0**blocks
            predicted = e.measured.signal.set_index("name")["predicted_sum_variance"].get(where[1], float("nan"))
            if np.isfinite(predicted):
                evidence["predicted_behind"] = float(predicted)
        kind = "growing_variance" if grows else "fading_signal"
        return Check(SIGNAL, summary, (e.finding(kind, severity, where, evidence),))
    return Check(SIGNAL, summary)


def _largest_rise(logarithms: np.ndarray) -> tuple[int, int, float]:
    """The blocks, numbered from 1, over which logarithms to base 2 rise most: the first, the last, and the factor."""
    lowest = np.minimum.accumulate(logarithms)
    last = int((logarithms - lowest)[1:].argmax()) + 1
    first = int(logarithms[: last + 1].argmin()) + 1
    rise = float(logarithms[last] - logarithms[first - 1])
    return min(first, last), last, 2.0**rise


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
    evidence = {
        "ratio": ratio,
        "blocks": blocks,
        "ratio_per_block": ratio ** (1 / blocks),
        "norm_behind_first": float(norms[0]),
        "norm_behind_last": float(norms[-1]),
    }
    kind = "exploding_gradient" if explodes else "vanishing_gradient"
    return Check(GRADIENT, summary, (e.finding(kind, min(0.75, 0.2 + log10(ratio) / 20), where, evidence),))


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
    findings = []
    if dead:
        parameters = len(names[dead[0]])
        evidence = {"dead": len(dead), "blocks": e.map.depth, "parameters_without_gradient": parameters}
        kind = "stuck_multiplier" if multipliers.get(dead[0]) == 0 else "dead_branch"
        findings.append(e.finding(kind, 0.5 + 0.4 * len(dead) / e.map.depth, dead, evidence))
    trained = {block: value for block, value in multipliers.items() if block not in dead}
    median = sorted(trained.values())[len(trained) // 2] if trained else 0.0
    closed = tuple(block for block, value in trained.items() if value < UNUSED * median)
    if closed:
        severity, first = 0.2 + 0.3 * len(closed) / len(trained), trained[closed[0]]
        sizes = {"closed": len(closed), "multiplier": first, "median_multiplier": median}
        findings.append(e.finding("branch_never_grew", severity, closed, sizes, multipliers=len(trained)))
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
