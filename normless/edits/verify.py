"""Check by forward passes in both modes that the modules of edits run as intended and no norm was missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_tb

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless._internal.state import in_mode
from normless._internal.warn import warn
from normless.edits.surgery import Surgery
from normless.errors import EvaluationOnlyWarning, NormlessError, UnresolvedStructureError, UnsupportedEditError
from normless.nn import ResidualSum, ScalarAffine
from normless.recording import recorded

_NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")


def verify(surgery: Surgery, allow_partial: bool = False) -> None:
    """Run the network on the example inputs in evaluation and training; buffers and random state are unchanged.

    Raises:
        UnsupportedEditError: the network does not run any more, a module of an edit does not run exactly once, or a
            multiplier that starts at 0 follows a branch that is 0 for any input.
        UnresolvedStructureError: without `allow_partial`, a norm still runs that is not in the residual map.
    """
    with _open_multipliers(surgery) as dead:
        passes = {"evaluation": _observed(surgery, training=False)}
    # Training may ask for more than these inputs: targets, or more than one example under a norm that was kept.
    try:
        passes["training"] = _observed(surgery, training=True)
    except UnsupportedEditError as error:
        warn(f"The conversion is verified in evaluation only. {error}", EvaluationOnlyWarning)
    for mode, seen in passes.items():
        _check_runs(surgery, mode, seen)
        if seen.norms and not allow_partial:
            path, operator = next(iter(seen.norms.items()))
            raise UnresolvedStructureError(
                f"After the conversion of this {type(surgery.model).__name__} {operator} still runs in {mode} mode "
                f"in {path or 'its own forward'}, a norm that the residual map does not have. allow_partial=True "
                "leaves it there."
            )
    missed = sorted(path for path in surgery.replaced if not any(seen.runs[path] for seen in passes.values()))
    if missed:
        raise UnsupportedEditError(_wrong_count(surgery, missed[0], 0))
    if dead:
        raise UnsupportedEditError(
            f"A multiplier that starts at 0 is not possible at {dead[0]} of this {type(surgery.model).__name__}: its "
            "branch returns 0 on the example inputs anyway, so neither would ever get a gradient. Let the multiplier "
            "start at 1, as skipinit(alpha=1) does."
        )


def _check_runs(surgery: Surgery, mode: str, seen: _Seen) -> None:
    """Check that modules of edits run at most as often as those they replaced, and sums if their branches run."""
    for path in sorted(surgery.replaced):
        parent = seen.runs[path.rpartition(".")[0]] if path not in surgery.runs else 1
        if seen.runs[path] > max(1, surgery.runs[path], parent):
            raise UnsupportedEditError(_wrong_count(surgery, path, seen.runs[path]))
    for block, paths in surgery.lifted_sums():
        weights = [path for path in block.branch if ":" not in path and surgery.map.by_path[path].called]
        missing = [path for path in paths if not seen.runs[path]]
        if missing and weights and all(seen.runs[path] for path in weights):
            raise UnsupportedEditError(
                f"In {mode} mode the branch of {block.name} in this {type(surgery.model).__name__} runs, but its sum "
                f"{missing[0]} does not: the forward code adds elsewhere in that mode."
            )


def _wrong_count(surgery: Surgery, path: str, count: int) -> str:
    return (
        f"In this {type(surgery.model).__name__} a forward pass calls {path} {count} times instead of once, so that "
        "its edits would have another meaning."
    )


@dataclass(frozen=True)
class _Seen:
    """What ran in a pass: the number of runs of each module, and norm operators in modules that no edit changed."""

    runs: Counter[str]
    norms: dict[str, str]


def _observed(surgery: Surgery, training: bool) -> _Seen:
    """Record a forward pass in one mode."""
    model = surgery.model
    try:
        with in_mode(model, training):
            tape = recorded(model, surgery.inputs, surgery.kwargs)
    except NormlessError as error:
        raise UnsupportedEditError(
            f"The converted {type(model).__name__} does not run on the example inputs: {error.__cause__} "
            f"(in {'training' if training else 'evaluation'} mode){_original_fault(surgery, error.__cause__)}."
        ) from error
    known = (*surgery.map.norms, *surgery.map.directions)
    kept = {path.partition(":")[0] for path in known if path not in surgery.removed}
    changed = tuple(f"{path}." for path in surgery.replaced)
    paths = surgery.original_paths - surgery.replaced - kept
    unseen = {path for path in paths if surgery.covers(path) and not path.startswith(changed)}
    # A standardized weight is not an activation.
    norms = (node for node in tape.nodes if node.active and any(norm in node.name for norm in _NORMS))
    runs = Counter({path: len(own) for path, own in tape.recorder.runs.items()})
    return _Seen(runs, {node.modules[-1]: node.name for node in norms if node.modules[-1] in unseen})


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


@contextmanager
def _open_multipliers(surgery: Surgery) -> Iterator[list[str]]:
    """Set multipliers of 0 to 1 for a pass, and list those after a branch that is 0 anyway."""
    dead: list[str] = []

    def note(path: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        source, branch = inputs if isinstance(module, ResidualSum) else (inputs[0] if inputs else output, output)
        if bool(source.any()) and not bool(branch.any()):
            dead.append(path)

    modules = [named for named in surgery.model.named_modules() if isinstance(named[1], (ScalarAffine, ResidualSum))]
    multipliers = {path: module.multiplier for path, module in modules if not surgery.is_meta}
    closed = {path: value for path, value in multipliers.items() if isinstance(value, Tensor) and not value.any()}
    try:
        for multiplier in closed.values():
            multiplier.data.fill_(1)
        with surgery.hooked(closed, note):
            yield dead
    finally:
        for multiplier in closed.values():
            multiplier.data.zero_()
