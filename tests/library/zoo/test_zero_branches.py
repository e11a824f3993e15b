"""What a map says of blocks, tried on the running network: with every branch at zero, only the skip paths are left.

The oracle knows nothing of the dataflow that the map is read from. It sets the parameters of the last layer of every
branch to zero, runs the network with hooks on the modules around the blocks, and does by hand to the input of each
what the map says lies beside the branches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from itertools import takewhile
from typing import Any

import pytest
import torch
from gallery import ROWS
from gallery.row import differences
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normless import residual_map
from normless.residual import ResidualBlock, ResidualMap

Run = tuple[Tensor, Tensor]


QUICK = ("small timm ViT", "hf BERT", "torch post-norm encoder")
OF_ZOO = (
    *("torchvision resnext50_32x4d", "torchvision regnet_y_400mf", "torchvision mobilenet_v2", "torchvision swin_t"),
    *("torchvision efficientnet_b0", "torchvision convnext_tiny", "torchvision vit_b_16", "timm resnetv2_18"),
    *("timm res2next50", "timm legacy_seresnet18", "timm legacy_xception", "timm convmixer_768_32", "ResNet-18"),
    *("timm test_mambaout", "timm poolformer_s12", "timm gmlp_ti16_224", "timm test_vit", "timm davit_tiny"),
    *("timm vit_tiny_patch16_dinov3_qkvb", "hf GPT-2", "hf T5", "hf ViT", "hf Swin", "hf ConvNeXt", "hf ResNet"),
    *("torch pre-norm encoder", "torch decoder"),
)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.zoo) for name in OF_ZOO)])
def test_without_its_branches_a_module_is_its_skip_paths(name: str) -> None:
    model, (inputs, kwargs) = perturbed(ROWS[name].network()).eval(), ROWS[name].example()
    found = residual_map(model, *inputs, **kwargs)
    assert differences(ROWS[name], found) == []
    homes = homes_of(found)

    def recorded() -> dict[str, Run]:
        return record(model, inputs, kwargs, homes)

    alive = recorded()
    switch_off(model, found)
    dead = recorded()
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
    paths = [block.module, *(layer.path.partition(":")[0] for layer in block.layers)]
    common = takewhile(lambda names: len(set(names)) == 1, zip(*(path.split(".") for path in paths), strict=False))
    return ".".join(names[0] for names in common)


def record(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], paths: Iterable[str]) -> dict[str, Run]:
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
        model(*inputs, **kwargs)
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
