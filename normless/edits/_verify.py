"""Check by passes in both modes that a converted network runs as intended, misses no norm, is finite and trains."""

from __future__ import annotations

from traceback import walk_tb

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless._internal.warn import warn
from normless.edits._liveness import check_finite, check_life
from normless.edits._passes import NORMS, Pass, passed
from normless.edits._surgery import Surgery
from normless.errors import EvaluationOnlyWarning, InputsError, UnresolvedStructureError, UnsupportedEditError
from normless.recording._passes import recorded
from normless.state import in_mode


def verify(surgery: Surgery, original: nn.Module | None, allow_partial: bool = False) -> None:
    """Run the network forward and backward on the example inputs in evaluation and training.

    Args:
        surgery: the network after the edits.
        original: the network before the edits. Without it, parameters are only refused if zeros of the edits keep
            each other at zero.
        allow_partial: whether norms may be left that are not in the residual map.

    Raises:
        UnsupportedEditError: the network does not run any more, a module of an edit does not run exactly once, a
            multiplier that starts at 0 follows a branch that is 0 for any input, outputs or gradients are no longer
            finite, or parameters have lost their gradients for good.
        UnresolvedStructureError: without `allow_partial`, a norm still runs that is not in the residual map.
    """
    evaluation = passed(surgery, surgery.model, training=False, follows=True)
    if evaluation.error is not None:
        raise _fault(surgery, evaluation)
    passes = [evaluation]
    # Training may ask for more than these inputs: targets, or more than one example under a norm that was kept.
    training = passed(surgery, surgery.model, training=True, follows=True)
    if training.error is None:
        passes.append(training)
    else:
        text = f"The conversion is verified in evaluation only. {_fault(surgery, training)}"
        warn(text, EvaluationOnlyWarning)
    for seen in passes:
        _check_runs(surgery, seen)
        if not allow_partial:
            _check_norms(surgery, seen)
    missed = sorted(path for path in surgery.log.replaced if not any(seen.runs[path] for seen in passes))
    if missed:
        raise UnsupportedEditError(_wrong_count(surgery, missed[0], 0))
    if all(check_finite(surgery, seen, original) for seen in reversed(passes)):
        check_life(surgery, evaluation, original)


def _check_norms(surgery: Surgery, seen: Pass) -> None:
    """Refuse a norm function in a module that no edit changed and that is not in the residual map."""
    known = (*surgery.map.norms, *surgery.map.directions)
    kept = {path.partition(":")[0] for path in known if path not in surgery.log.removed}
    changed = tuple(f"{path}." for path in surgery.log.replaced)
    paths = surgery.places.paths - surgery.log.replaced - kept
    unseen = {path for path in paths if surgery.places.covers(path) and not path.startswith(changed)}
    if unseen.isdisjoint(seen.norms):
        return
    # A standardized weight is not an activation.
    with in_mode(surgery.model, seen.training):
        tape = recorded(surgery.model, *surgery.example)
    norms = (node for node in tape.nodes if node.active and any(norm in node.name for norm in NORMS))
    found = {node.modules[-1]: node.name for node in norms if node.modules[-1] in unseen}
    if found:
        path, operator = next(iter(found.items()))
        raise UnresolvedStructureError(
            f"After the conversion of this {type(surgery.model).__name__} {operator} still runs in {seen.mode} "
            f"mode in {path or 'its own forward'}, a norm that the residual map does not have. allow_partial=True "
            "leaves it there."
        )


def _check_runs(surgery: Surgery, seen: Pass) -> None:
    """Check that modules of edits run at most as often as those they replaced, and sums if their branches run."""
    for path in sorted(surgery.log.replaced):
        parent = seen.runs[path.rpartition(".")[0]] if path not in surgery.places.runs else 1
        parent *= surgery.lifted.runs.get(path, 1)
        if seen.runs[path] > max(1, surgery.places.runs[path], parent):
            raise UnsupportedEditError(_wrong_count(surgery, path, seen.runs[path]))
    for block in surgery.map.walk():
        calls = (addition.made_by for addition in block.additions)
        paths = [surgery.lifted.sums[call] for call in calls if call in surgery.lifted.sums]
        weights = [path for path in block.branch if ":" not in path and surgery.map.by_path[path].called]
        missing = [path for path in paths if not seen.runs[path]]
        if missing and weights and all(seen.runs[path] for path in weights):
            raise UnsupportedEditError(
                f"In {seen.mode} mode the branch of {block.name} in this {type(surgery.model).__name__} runs, but "
                f"its sum {missing[0]} does not: the forward code adds elsewhere in that mode."
            )


def _wrong_count(surgery: Surgery, path: str, count: int) -> str:
    return (
        f"In this {type(surgery.model).__name__} a forward pass calls {path} {count} times instead of once, so that "
        "its edits would have another meaning."
    )


def _fault(surgery: Surgery, seen: Pass) -> UnsupportedEditError:
    """Return the error of a forward pass that stopped."""
    cause = seen.error.__cause__ if isinstance(seen.error, InputsError) else seen.error
    error = UnsupportedEditError(
        f"The converted {type(surgery.model).__name__} does not run on the example inputs: {cause} "
        f"(in {seen.mode} mode){_original_fault(surgery, cause)}."
    )
    error.__cause__ = seen.error
    return error


def _original_fault(surgery: Surgery, error: BaseException | None) -> str:
    """Explain an error that a kept batch norm of the original network raised, or return ""."""
    if error is None or "more than 1 value per channel" not in str(error):
        return ""
    paths = {id(module): path for path, module in surgery.model.named_modules()}
    owners = [frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__)]
    raised = [owner for owner in owners if id(owner) in paths]
    path = paths[id(raised[-1])] if raised else ""
    if not raised or not isinstance(raised[-1], _BatchNorm) or path.removesuffix(".norm") not in surgery.map.norms:
        return ""
    return (
        f". So does the original: the batch norm {path} has one value per channel on these inputs. Pass two examples "
        "or more (drop_last=True for a data loader), or take that norm out, as group_norm and none do"
    )
