"""Checks of the residual blocks: signal and gradient along the skip path, branches that are dead or never opened."""

from __future__ import annotations

from math import log, log2, log10, nan

import numpy as np
import torch
from torch import nn

from normless._internal.copying import copied
from normless.doctor._findings import NotAsked, Steps, check, finding
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._passed import Passed, pass_through
from normless.doctor.facts._tracer import Tracer
from normless.probes._signal import predicted_moments

# A class dominates if it is predicted for nine examples in ten but the target of at most half, at twice the loss of
# guessing.
PREDICTED, TRUE, TIMES_GUESSING = 0.9, 0.5, 2.0
# The signal of normalized networks grows with the number n of blocks; growth up to 16 n is not a finding.
SIGNAL_MARGIN = 16.0
# A signal that fades by less is not a finding.
FADES = 2.0**10
# With norms on the branches the gradient's norm changes with the root of the number of blocks.
GRADIENT_MARGIN = 32.0
# A trained multiplier this much smaller than the median leaves its branch unused.
UNUSED = 1e-3
# The norm of a step of each parameter.
STEP = 1e-2
_UNSEEN = "no residual sum could be measured"
# The growth of a second moment at which float32 drops the first summand of a sum.
BEYOND = torch.finfo(torch.float32).eps ** -2


@check("signal along the skip path", needs="map")
def check_growth(exam: Examination) -> Steps:
    """Look for growth or decay of E[x²] that is exponential in depth."""
    table = exam.observed("signal")
    if table.empty:
        raise NotAsked(_UNSEEN)
    moments = np.concatenate([table["skip_second_moment"].iloc[:1], table["sum_second_moment"]]).astype(float)
    names = list(table["name"])
    if not np.isfinite(moments).all():
        first = int(np.isfinite(moments).argmin())
        block, before = max(first, 1), float(moments[first - 1]) if first else nan
        # Where the signal does not grow, the check of finite values finds the cause.
        if before > SIGNAL_MARGIN * block * moments[0]:
            evidence = {"block": block, "blocks": len(names), "second_moment_before": before}
            yield finding("overflow", [names[block - 1]], evidence)
        return "not finite"
    if not moments.all():
        return f"zero after {names[max(int(moments.astype(bool).argmin()) - 1, 0)]}"
    summary = (
        f"E[x²] from {moments[0]:.3g} before the first of {len(names)} blocks to {moments[-1]:.3g} after the last"
    )
    if exam.norms_placed == "post":
        return f"{summary}; norms follow the sums"
    for kind, logarithms in (("growing_variance", np.log2(moments)), ("fading_signal", -np.log2(moments))):
        grows = kind == "growing_variance"
        first, last, factor = _largest_rise(logarithms)
        where, blocks = (names[first - 1], names[last - 1]), last - first + 1
        # The first branch alone may be larger or smaller than its input, for example after an embedding.
        later = factor if len(moments) <= 3 else _largest_rise(logarithms[1:])[2]
        # Growth in depth needs two blocks.
        if blocks < 2 or min(factor, later) <= SIGNAL_MARGIN * blocks or (factor <= FADES and not grows):
            continue
        evidence = {"factor": factor, "factor_per_block": float(factor ** (1 / blocks)), "blocks": blocks}
        evidence |= {"second_moment_before": float(moments[first - 1]), "second_moment_after": float(moments[last])}
        if grows:
            assert exam.map is not None
            by_block = zip(exam.blocks, predicted_moments(exam.model, exam.map, exam.inputs), strict=True)
            predicted = next(float(known.total_variance) for block, known in by_block if block.name == where[1])
            evidence |= {"doubling_would_give": 2.0**blocks}
            evidence |= {"predicted_after": predicted} if np.isfinite(predicted) else {}
        if grows and factor > BEYOND and exam.knows("not_finite"):
            # This growth causes later values that are not finite.
            kind = "growth_beyond"
        yield finding(kind, where, evidence, grade=log2(factor) / 28, norms=exam.norms_placed)
        break
    return summary


def _largest_rise(logarithms: np.ndarray) -> tuple[int, int, float]:
    """Return the first and last block, numbered from 1, of the largest rise of base-2 logarithms, and its factor."""
    lowest = np.minimum.accumulate(logarithms)
    last = int((logarithms - lowest)[1:].argmax()) + 1
    first = int(logarithms[: last + 1].argmin()) + 1
    rise = float(logarithms[last] - logarithms[first - 1])
    return min(first, last), last, 2.0**rise


@check("gradient along the skip path", needs="map")
def check_backward(exam: Examination) -> Steps:
    """Compare the norms of the gradient at the outputs of all blocks."""
    table = exam.observed("backward")
    norms = table["gradient_norm"].to_numpy(float)
    if not len(norms):
        raise NotAsked(_UNSEEN)
    if not np.isfinite(norms).all():
        return "not finite"
    if not norms.all():
        raise NotAsked("it is zero: the classifier, or another layer after the blocks, does not pass it on yet")
    first, last = sorted((int(norms.argmax()), int(norms.argmin())))
    ratio, blocks = float(norms.max() / norms.min()), last - first + 1
    if ratio > GRADIENT_MARGIN * blocks:
        where = (str(table["name"].iloc[first]), str(table["name"].iloc[last]))
        evidence = {"ratio": ratio, "blocks": blocks, "ratio_per_block": ratio ** (1 / blocks)}
        evidence |= {"norm_after_first": float(norms[0]), "norm_after_last": float(norms[-1])}
        kind = "exploding_gradient" if norms.argmax() < norms.argmin() else "vanishing_gradient"
        yield finding(kind, where, evidence, grade=log10(ratio) / 11, norms=exam.norms_placed)
    return f"‖∂L/∂x‖ from {norms[0]:.3g} after the first block to {norms[-1]:.3g} after the last"


@check("classes", needs="map")
def check_classes(exam: Examination) -> Steps:
    """Look for a class that is predicted for most examples and dominates the gradient of the logits."""
    table, loss = exam.passed.tables["logits"], exam.passed.loss
    if len(table) < 2 or not table["target_share"].notna().all():
        raise NotAsked("the targets are not indices of several classes")
    guessing = log(len(table))
    favoured = table[table["favoured"]].iloc[0]
    predicted, true = float(favoured["predicted_share"]), float(favoured["target_share"])
    if predicted >= PREDICTED and true <= TRUE and loss > TIMES_GUESSING * guessing:
        energy = (table["bias_gradient"] ** 2).sum()
        evidence = {
            "class": int(favoured["class"]),
            "predicted_share": predicted,
            "target_share": true,
            "share_of_squared_logit_gradient": float(favoured["bias_gradient"] ** 2 / energy) if energy else nan,
            "agreement_of_its_gradients": float(favoured["agreement"]),
            "loss": loss,
            "loss_of_guessing": guessing,
        }
        where = [*filter(None, [exam.classifier])]
        yield finding("dominant_class", where, evidence, grade=(loss / guessing - 1) / 3)
    return (
        f"the loss is {loss:.3g}, guessing among {len(table)} gives {guessing:.3g}; class {int(favoured['class'])} "
        f"is predicted for {predicted:.0%} of the examples"
    )


@check("branches", needs="map")
def check_branches(exam: Examination) -> Steps:
    """Look for branches without output and gradients, and for multipliers that stayed near zero in training."""
    if not exam.blocks:
        raise NotAsked("there is no residual block")
    names = _branch_parameters(exam)
    table = exam.passed.tables["signal"]
    silent = list(table.loc[table["branch_variance"] == 0, "name"])
    network = _passing_on(exam) if silent else exam.model
    passed = exam.passed if network is exam.model else _pass(exam, network)
    # A block without a gradient at its output waits for later blocks to open.
    norms = passed.tables["backward"].set_index("name")["gradient_norm"]
    waiting = [block for block in silent if norms.get(block) == 0]
    closed = [block for block in silent if not any(passed.gradients.get(name) for name in names[block])]
    dead = [block for block in closed if block not in waiting]
    dead = _still_closed(exam, dead, network) if dead else dead
    named = {block: next((n for n in own if n.endswith("multiplier")), "") for block, own in names.items()}
    sizes = {block: exam.model.get_parameter(name).detach().abs().max() for block, name in named.items() if name}
    multipliers = {block: float(size) for block, size in sizes.items()}
    if dead:
        evidence = {"dead": len(dead), "blocks": exam.depth, "parameters_without_gradient": len(names[dead[0]])}
        kind = "stuck_multiplier" if multipliers.get(dead[0]) == 0 else "dead_branch"
        yield finding(kind, dead, evidence, grade=len(dead) / exam.depth)
    trained = {block: value for block, value in multipliers.items() if block not in dead}
    median = sorted(trained.values())[len(trained) // 2] if trained else 0.0
    if unused := [block for block, value in trained.items() if value < UNUSED * median]:
        found = {"closed": len(unused), "multiplier": trained[unused[0]], "median_multiplier": median}
        grade = len(unused) / len(trained)
        yield finding("branch_never_grew", unused, found, grade=grade, multipliers=len(trained))
    return f"{len(names)} blocks, {len(silent)} with a branch that is zero so far"


def _branch_parameters(exam: Examination) -> dict[str, list[str]]:
    """Return the trainable parameters of each block's branch, including a multiplier in its sum."""
    trainable = {name for name, parameter in exam.model.named_parameters() if parameter.requires_grad}
    parameters = {}
    for block in exam.blocks:
        names = [name for layer in block.branch_layers for name in layer.parameters]
        if block.sum is not None:
            names += [f"{block.sum}.{name}" for name, _ in exam.model.get_submodule(block.sum).named_parameters()]
        parameters[block.name] = [name for name in dict.fromkeys(names) if name in trainable]
    return parameters


def _pass(exam: Examination, network: nn.Module) -> Passed:
    return pass_through(network, exam.inputs, exam.targets, exam.loss, exam.map)


def _passing_on(exam: Examination) -> nn.Module:
    """Return the network, or a copy with a random classifier if a zero one stops all gradients."""
    sums = exam.passed.tables["backward"]["gradient_norm"].dropna()
    if exam.classifier is None or sums.empty or sums.iloc[-1] != 0:
        return exam.model
    network = copied(exam.model)
    weight = network.get_submodule(exam.classifier).get_parameter("weight")
    with torch.no_grad():
        weight.normal_(0, weight.shape[1] ** -0.5, generator=torch.Generator(weight.device).manual_seed(0))
    return network


def _still_closed(exam: Examination, blocks: list[str], network: nn.Module) -> list[str]:
    """Return the blocks whose branch is zero after a step too: gates computed from other inputs may have opened."""
    network = copied(network)
    own = [parameter for parameter in network.parameters() if parameter.requires_grad]
    with exam.repeated(Tracer(), model=network) as loss:
        gradients = torch.autograd.grad(loss, own, allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(own, gradients, strict=True):
            if gradient is not None and bool(size := gradient.norm()):
                parameter.sub_(gradient / size, alpha=STEP)
    table = _pass(exam, network).tables["signal"]
    closed = {*table.loc[table["branch_variance"] == 0, "name"]}
    return [block for block in blocks if block in closed]
