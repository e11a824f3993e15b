"""Inspection of a network before training: its map, its parameter groups, and the changes of schemes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from normless._internal.arguments import arguments_of, forward_arguments
from normless.conversion import UnreadInputsError, plan_of, prepared
from normless.edits import Change
from normless.edits._original import Original
from normless.errors import NormlessError
from normless.optim import param_groups
from normless.residual import ResidualMap
from normless.schemes import SCHEMES, Scheme, scheme, trained


@dataclass(frozen=True)
class GroupSize:
    """A parameter group: the numbers of its tensors and elements, and whether the guidelines decay it."""

    name: str
    tensors: int
    parameters: int
    decayed: bool


@dataclass(frozen=True)
class SchemePlan:
    """The changes of a scheme; `reason` says why it cannot be applied, and is None if it can."""

    scheme: str
    changes: tuple[Change, ...] = ()
    reason: str | None = None

    @property
    def by_edit(self) -> dict[str, int]:
        """The number of changes of every edit, in the order of the edits."""
        return dict(Counter(change.edit for change in self.changes))


@dataclass(frozen=True)
class Inspection:
    """The residual map of a network, the sizes of its parameter groups, and the plans of schemes."""

    map: ResidualMap
    groups: tuple[GroupSize, ...]
    schemes: tuple[SchemePlan, ...]

    @property
    def blocks_by_m(self) -> dict[int, int]:
        """The number of outermost blocks with m weight layers in series on their branch, by m."""
        return dict(sorted(Counter(block.m for block in self.map.blocks).items()))

    @property
    def norms_by_role(self) -> dict[str, int]:
        """The number of norms with each role."""
        counted = Counter(self.map.norms.values())
        return {role: counted[role] for role in ("stem", "last", "down", "other") if counted[role]}

    @property
    def weight_layers(self) -> int:
        """The number of weight layers; a layer that runs several times counts once."""
        return len({layer.path for layer in self.map.layers() if layer.kind == "weight"})

    def to_dict(self) -> dict[str, Any]:
        """Return the map as plain data, with `totals` and `schemes`."""
        return self.map.to_dict() | {
            "totals": {
                "blocks_by_m": {str(m): count for m, count in self.blocks_by_m.items()},
                "identity_skips": sum(block.identity_skip for block in self.map.blocks),
                "inner_blocks": sum(1 for _ in self.map.walk()) - self.map.depth,
                "weight_layers": self.weight_layers,
                "norms_by_role": self.norms_by_role,
                "parameters": [asdict(group) for group in self.groups],
            },
            "schemes": {
                item.scheme: {"changes": item.by_edit} if item.reason is None else {"reason": item.reason}
                for item in self.schemes
            },
        }


def inspect_network(
    model: nn.Module, *inputs: Any, schemes: Sequence[str] | None = None, example_inputs: Any = None, **kwargs: Any
) -> Inspection:
    """Read a network's map once, and from it count its parameters by group and plan schemes.

    Args:
        model: the network, in the mode in which it is inspected; it is not changed.
        inputs, kwargs, example_inputs: as in `convert`; a single tuple or dictionary is `example_inputs` too.
        schemes: texts of the schemes to plan; if None all of `SCHEMES` but `trained`, which is a form of the others.
            Then schemes that run the network on the inputs, such as `lsuv`, are listed without a plan.

    Raises:
        UnresolvedStructureError: the network must be traced and cannot be.
        ValueError: a scheme is unknown.
    """
    every = [name for name in SCHEMES if name != trained.__name__]
    chosen = [scheme(text) for text in (every if schemes is None else schemes)]
    if len(inputs) == 1 and not kwargs and example_inputs is None:
        inputs, kwargs = arguments_of(inputs[0])
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    original = Original(model, inputs, kwargs)
    mapped = original.map
    groups = param_groups(model, lr=1.0, weight_decay=1.0, residual_map=mapped)
    members = [(group["name"], group["params"], group["weight_decay"] > 0) for group in groups]
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    if frozen:
        members.append(("frozen", frozen, False))
    return Inspection(
        map=mapped,
        groups=tuple(GroupSize(name, len(of), sum(map(Tensor.numel, of)), decayed) for name, of, decayed in members),
        schemes=tuple(_planned(original, made, schemes is not None) for made in chosen),
    )


def _planned(original: Original, made: Scheme, runs: bool) -> SchemePlan:
    try:
        return SchemePlan(made.text, plan_of(original, *prepared(original, made), runs=runs))
    except UnreadInputsError:
        reason = f"It runs the network on the inputs, and so is planned only by name: --schemes {made.text}"
    except NormlessError as error:
        reason = str(error)
    except Exception as error:
        # The other schemes and the map are still valid.
        reason = f"An edit of {made.text} fails on this {type(original.model).__name__} with an unexpected error: "
        reason += f"{type(error).__name__}: {error}"
    return SchemePlan(made.text, reason=reason)
