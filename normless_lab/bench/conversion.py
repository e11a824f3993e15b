"""The cost of a network's training step after a conversion, relative to that of the same network before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normless._internal.arguments import arguments_of
from normless.conversion import convert
from normless.models import build_with_inputs
from normless_lab.bench.step import opened
from normless_lab.bench.timing import ratio_table, seconds_in_turns

NETWORKS = (
    "torchvision:resnet18",
    "timm:convnext_atto",
    "timm:vit_tiny_patch16_224",
    "torchvision:mobilenet_v2",
)
BEFORE = "as written"


@dataclass(frozen=True)
class ConversionBench:
    """Networks with random weights, texts for `build_model`, and the schemes to convert them by."""

    networks: Sequence[str] = NETWORKS
    schemes: tuple[str, ...] = ("skipinit", "fixup")
    rounds: int = 5


def measure_conversion(bench: ConversionBench) -> pd.DataFrame:
    """Time a step of each network before and after conversion.

    A step consists of a forward and a backward pass in training mode on the network's example inputs; the loss is the
    mean square of its outputs. A row per network and scheme, see `ratio_table`; ratios are to the network as written.

    Raises:
        MissingExtraError: torchvision, timm or transformers is needed and not installed.
    """
    return pd.concat([_measure(name, bench) for name in bench.networks], ignore_index=True)


def _measure(name: str, bench: ConversionBench) -> pd.DataFrame:
    torch.manual_seed(0)
    model, inputs = build_with_inputs(name)
    arguments, named = arguments_of(inputs)
    networks = {BEFORE: model}
    networks |= {scheme: convert(model, scheme, *arguments, **named) for scheme in bench.schemes}
    steps = {
        scheme: partial(_pass, opened(network).train(), arguments, named) for scheme, network in networks.items()
    }
    seconds = seconds_in_turns(steps, bench.rounds)
    table = ratio_table("scheme", seconds, seconds.div(seconds[BEFORE], axis=0))
    table.insert(0, "network", name)
    return table


def _pass(network: nn.Module, arguments: Sequence[object], named: dict[str, object]) -> None:
    network.zero_grad()
    outputs = [leaf for leaf in tree_leaves(network(*arguments, **named)) if isinstance(leaf, Tensor)]
    loss = torch.stack([output.square().mean() for output in outputs if output.requires_grad]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
