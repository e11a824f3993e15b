"""Read the state of a network besides the tensors in its `state_dict`, and restore it in another network."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normless.affine._maps import replace_modules
from normless.errors import RecipeError
from normless.nn import FrozenAffine
from normless.saving._recipe import State
from normless.saving._settings import kinds_of_modules, set_settings
from normless.state import running

# The largest difference of outputs by rounding in another order, relative to the largest output.
_ROUNDING, _ROUNDING_OF_HALF = 1e-3, 5e-2


def state_of(net: nn.Module) -> State:
    """Return the state of a network besides the tensors in its `state_dict`, with all of its further buffers."""
    return State(
        modules=kinds_of_modules(net),
        ties=_ties(net),
        fixed=[name for name, parameter in net.named_parameters() if not parameter.requires_grad],
        buffers=list(further_buffers(net)),
    )


def further_buffers(net: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that `state_dict` leaves out, by name."""
    kept = net.state_dict(keep_vars=True).keys()
    return {name: buffer.detach() for name, buffer in net.named_buffers(remove_duplicate=False) if name not in kept}


def prepare(net: nn.Module, state: State, stored: Mapping[str, Tensor]) -> None:
    """Restore the modules, parameters and ties of the saved network, so that the stored tensors fit.

    The restored modules are those by which `fold` and `freeze` replace norms. Other differences are left to
    `complete`.
    """
    wanted = {path: kind for kind in state.modules for path in kind["paths"]}
    replaced = {
        module: new
        for path, module in net.named_modules()
        if path in wanted and (new := _in_place_of(module, path, wanted, stored)) is not None
    }
    if net not in replaced:
        replace_modules(net, replaced)
    modules = dict(net.named_modules())
    for path, kind in wanted.items():
        for name in kind["absent"] if path in modules else ():
            for table in (modules[path]._parameters, modules[path]._buffers):
                table.update({name: None} if name in table else {})
    for name, value in stored.items():
        path, _, last = name.rpartition(".")
        module = modules.get(path, nn.Module())
        device = next((parameter.device for parameter in net.parameters()), value.device)
        # Registered as None before: a bias that folding added to a layer, or statistics that were added to a norm.
        if module._parameters.get(last, value) is None:
            module._parameters[last] = nn.Parameter(torch.empty_like(value, device=device))
        elif module._buffers.get(last, value) is None:
            module._buffers[last] = torch.empty_like(value, device=device)
    if wanted:
        _tie(net, state.ties)


def complete(net: nn.Module, state: State, stored: Mapping[str, Tensor]) -> None:
    """Restore settings, buffers and trained parameters in a network that has the saved tensors.

    Raises:
        RecipeError: the network differs in something that a recipe cannot hold; the message names the module.
    """
    set_settings(net, state.modules)
    modules = dict(net.named_modules(remove_duplicate=False))
    for name in state.buffers:
        path, _, last = name.rpartition(".")
        if path not in modules or name not in stored:
            raise RecipeError(f"The recipe has a buffer {name}, which is not in the file or the network.")
        before = modules[path]._buffers.get(last)
        value = stored[name] if before is None else stored[name].to(before.device)
        modules[path].register_buffer(last, value, persistent=False)
    for name, parameter in net.named_parameters() if state.modules else ():
        parameter.requires_grad_(name not in state.fixed)


def check_equal(net: nn.Module, rebuilt: nn.Module, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> None:
    """Raise a RecipeError if two networks with the same settings differ in parameters, or in outputs in any mode."""
    own, other = state_of(net), state_of(rebuilt)
    absent = [{path: kind["absent"] for kind in state.modules for path in kind["paths"]} for state in (own, other)]
    if absent[0] != absent[1] or own.ties != other.ties or own.fixed != other.fixed:
        raise RecipeError("Different parameters are tied, trained or absent.")
    if not any(map(len, arguments)):
        return
    for training in (False, True):
        expected = _outputs(net, arguments, training)
        if expected is None:
            continue
        made = _outputs(rebuilt, arguments, training)
        if made is None or len(made) != len(expected) or not all(map(_close, expected, made)):
            mode = "training" if training else "evaluation"
            raise RecipeError(
                f"Its outputs on the example inputs differ in {mode} mode, because of something other than settings "
                "of modules: a hook, a changed method, or tensors that are neither parameters nor buffers."
            )


def _outputs(
    net: nn.Module, arguments: tuple[tuple[Any, ...], Mapping[str, Any]], training: bool
) -> list[Tensor] | None:
    """Return the tensors that a network returns with fixed random numbers, or None if it does not run."""
    if training and any(parameter.device.type != "cpu" for parameter in net.parameters()):
        return None  # The random state of a GPU is not restored.
    with running(net, training, arguments):
        torch.default_generator.manual_seed(0)
        try:
            return [
                output for output in tree_leaves(net(*arguments[0], **arguments[1])) if isinstance(output, Tensor)
            ]
        except Exception:
            return None


def _close(expected: Tensor, made: Tensor) -> bool:
    if expected.shape != made.shape or expected.dtype != made.dtype:
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, made)
    relative = _ROUNDING_OF_HALF if expected.element_size() < 4 else _ROUNDING
    scale = expected.double().nan_to_num(0, 0, 0).abs().amax().item() if expected.numel() else 0.0
    return torch.allclose(made.double(), expected.double(), rtol=0, atol=relative * scale, equal_nan=True)


def _in_place_of(
    module: nn.Module, path: str, wanted: Mapping[str, dict[str, Any]], stored: Mapping[str, Tensor]
) -> nn.Module | None:
    """Return the module by which folding or freezing replaced a module, or None if it was not replaced."""
    kind_of_norm = wanted[path]
    kind = kind_of_norm["class"]
    if type(module).__name__ == kind:
        return None
    prefix = f"{path}." if path else ""
    own = OrderedDict((name, child) for name, child in module.named_children() if f"{prefix}{name}" in wanted)
    if kind == FrozenAffine.__name__ and {f"{prefix}scale", f"{prefix}shift"} <= stored.keys():
        scale, shift = (stored[f"{prefix}{name}"].clone() for name in ("scale", "shift"))
        return FrozenAffine(scale, shift, own, learned=kind_of_norm["settings"]["learned"])
    if kind in (nn.Identity.__name__, nn.Sequential.__name__):
        return nn.Sequential(own) if own else nn.Identity()
    return None


def _ties(net: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several names."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in net.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return [group for group in names.values() if len(group) > 1]


def _tie(net: nn.Module, ties: list[list[str]]) -> None:
    """Tie the parameters of a network in these groups, and untie all others."""
    if _ties(net) == ties:
        return
    named = dict(net.named_parameters(remove_duplicate=False))
    group_of = {name: tuple(group) for group in ties for name in group}
    shared: dict[tuple[object, ...], nn.Parameter] = {}
    taken: set[int] = set()
    for name, parameter in named.items():
        key = (group_of.get(name, name), tuple(parameter.shape))
        if key not in shared:
            shared[key] = (
                parameter
                if id(parameter) not in taken
                else nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
            )
            taken.add(id(parameter))
        path, _, last = name.rpartition(".")
        net.get_submodule(path)._parameters[last] = shared[key]
