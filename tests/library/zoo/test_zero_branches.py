"""What a map says of blocks, tried on the running network: with every branch at zero, only the skip paths are left.

The oracle knows nothing of the dataflow that the map is read from. It sets the parameters of the last layer of every
branch to zero, runs the network with hooks on the modules around the blocks, and does by hand to the input of each
what the map says lies beside the branches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import takewhile
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from zoo_transformers import BUILDERS

from normless import residual_map
from normless.residual import ResidualBlock, ResidualMap

Run = tuple[Tensor, Tensor]


def from_timm(name: str, size: int = 64, **options: Any) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    return lambda: (timm.create_model(name, **options), {"x": torch.randn(2, 3, size, size)})


def from_torchvision(name: str, size: int = 64, **options: Any) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    return lambda: (torchvision.models.get_model(name, **options), {"x": torch.randn(2, 3, size, size)})


# Each with the number of its blocks, by its definition.
NETWORKS = {
    "torchvision resnet18": (from_torchvision("resnet18"), 8),
    "torchvision resnext50": (from_torchvision("resnext50_32x4d"), 16),
    "torchvision regnet": (from_torchvision("regnet_y_400mf"), 16),
    "torchvision mobilenet": (from_torchvision("mobilenet_v2"), 10),
    "torchvision efficientnet": (from_torchvision("efficientnet_b0"), 9),
    "torchvision convnext": (from_torchvision("convnext_tiny"), 18),
    "torchvision swin": (from_torchvision("swin_t"), 24),
    "torchvision vit": (from_torchvision("vit_b_16", image_size=64), 24),
    "timm resnetv2": (from_timm("resnetv2_18"), 8),
    "timm res2next": (from_timm("res2next50"), 16),
    "timm senet": (from_timm("legacy_seresnet18"), 8),
    "timm xception": (from_timm("legacy_xception", 96), 12),
    "timm convmixer": (from_timm("convmixer_768_32"), 32),
    "timm mambaout": (from_timm("test_mambaout"), 6),
    "timm poolformer": (from_timm("poolformer_s12"), 24),
    "timm gmlp": (from_timm("gmlp_ti16_224", img_size=64), 30),
    "timm vit": (from_timm("test_vit", img_size=64, init_values=0.5), 12),
    "timm dinov3": (from_timm("vit_tiny_patch16_dinov3_qkvb"), 24),
    "timm davit": (from_timm("davit_tiny"), 48),
    "bert": (BUILDERS["bert"], 6),
    "vit": (BUILDERS["vit"], 6),
    "gpt2": (BUILDERS["gpt2"], 6),
    "t5": (BUILDERS["t5"], 13),
    "swin": (BUILDERS["swin"], 6),
    "convnext": (BUILDERS["convnext"], 5),
    "resnet": (BUILDERS["resnet"], 4),
    "encoder post-norm": (BUILDERS["encoder post-norm"], 6),
    "encoder pre-norm": (BUILDERS["encoder pre-norm"], 6),
    "decoder": (BUILDERS["decoder"], 6),
}
QUICK = {"torchvision resnet18", "timm vit", "bert", "encoder post-norm"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.zoo) for name in NETWORKS]
)
def test_without_its_branches_a_module_is_its_skip_paths(name: str) -> None:
    build, blocks_by_definition = NETWORKS[name]
    model, inputs = build()
    model = perturbed(model).eval()
    found = residual_map(model, **inputs)
    assert found.depth == blocks_by_definition
    homes = homes_of(found)
    alive = record(model, inputs, homes)
    switch_off(model, found)
    dead = record(model, inputs, homes)
    for home, blocks in homes.items():
        given, returned = dead[home]
        assert torch.equal(by_hand(model, blocks, given), returned), home
        given, returned = alive[home]
        assert not torch.equal(by_hand(model, blocks, given), returned), home


def perturbed(model: nn.Module) -> nn.Module:
    """The network with no parameter at zero or one, where some initializations leave them."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def homes_of(found: ResidualMap) -> dict[str, list[ResidualBlock]]:
    """The modules around the outermost blocks, those inside another of them left out, and the blocks in each."""
    homes: dict[str, list[ResidualBlock]] = {}
    around = {block.name: f"{_module_around(block)}." for block in found.blocks}
    for block in found.blocks:
        home = min((path for path in around.values() if around[block.name].startswith(path)), key=len)
        homes.setdefault(home.removesuffix("."), []).append(block)
    return homes


def _module_around(block: ResidualBlock) -> str:
    paths = [block.name.partition("#")[0], *(layer.path.partition(":")[0] for layer in block.layers)]
    common = takewhile(lambda names: len(set(names)) == 1, zip(*(path.split(".") for path in paths), strict=False))
    return ".".join(names[0] for names in common)


def record(model: nn.Module, inputs: dict[str, Any], paths: Iterable[str]) -> dict[str, Run]:
    """What each module is given and returns in one forward pass; it is given noise on top of what reaches it.

    Without the noise a ReLU behind a sum would see nothing negative and be as good as none.
    """
    runs: dict[str, list[Tensor]] = defaultdict(list)

    def before(path: str, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        assert arguments, f"{path} is given nothing by position"
        given = arguments[0] + torch.randn_like(arguments[0])
        # A copy: an in-place activation may overwrite what the module is given.
        runs[path].append(given.clone())
        return (given, *arguments[1:]), named

    def after(path: str, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        runs[path].append(output[0] if isinstance(output, tuple) else output)

    handles: list[RemovableHandle] = []
    for path in paths:
        module = model.get_submodule(path)
        handles.append(module.register_forward_pre_hook(partial(before, path), with_kwargs=True))
        handles.append(module.register_forward_hook(partial(after, path)))
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return {path: (given, returned) for path, (given, returned) in runs.items()}


def switch_off(model: nn.Module, found: ResidualMap) -> None:
    """Set the last layer with parameters of every branch to zero."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for block in found.blocks:
            for branch in block.branches:
                *_, last = (layer for layer in branch if layer.parameters and not layer.gating)
                for name in last.parameters:
                    parameters[name].zero_()


@torch.no_grad()
def by_hand(model: nn.Module, blocks: list[ResidualBlock], value: Tensor) -> Tensor:
    """What is left of a module's blocks without their branches: the input itself, unless something else is named."""
    for block in blocks:
        for layer in (*(block.shared_layers if block.skip_layers else ()), *block.skip_layers, *block.after_sum):
            value = model.get_submodule(layer.path)(value)
    return value
