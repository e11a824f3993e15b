"""The cost of mapping and of converting a network, relative to one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import nn
from torch.export import export

from normless._internal.arguments import arguments_of
from normless.conversion import convert
from normless.extras import import_extra
from normless.models import Inputs, build_with_inputs
from normless.residual import residual_map
from normless_lab.bench.timing import ratio_table, seconds_in_turns

BERT = "transformers:bert"
NETWORKS = (
    "timm:resnet50",
    "timm:resnet152",
    "timm:res2net50_26w_4s",
    "timm:densenet121",
    "timm:efficientnet_b0",
    "timm:convnext_tiny",
    "timm:vit_base_patch16_224",
    "timm:swin_tiny_patch4_window7_224",
    "timm:maxvit_tiny_tf_224",
    BERT,
)


@dataclass(frozen=True)
class MapBench:
    """Networks to run, export, map and convert, with random weights, in eval mode, on two examples.

    Each is a text for `build_model`, or `transformers:bert` for BERT base on 128 tokens.
    """

    networks: Sequence[str] = NETWORKS
    scheme: str = "skipinit"
    rounds: int = 5


def measure_map(bench: MapBench) -> pd.DataFrame:
    """Time a forward pass, `torch.export.export`, `residual_map`, and `convert`, which includes mapping and checks.

    A row per network and task, see `ratio_table`; ratios are to the forward pass without gradients. A network without
    residual blocks is not converted. MissingExtraError if timm or transformers is needed and not installed.
    """
    return pd.concat([_measure(name, bench) for name in bench.networks], ignore_index=True)


def _measure(name: str, bench: MapBench) -> pd.DataFrame:
    model, inputs = _bert() if name == BERT else build_with_inputs(name)
    arguments, named = arguments_of(inputs)
    model.eval()

    def forward() -> object:
        with torch.no_grad():
            return model(*arguments, **named)

    runs: dict[str, Callable[[], object]] = {
        "forward": forward,
        "export": lambda: export(model, arguments, named, strict=False),
        "map": lambda: residual_map(model, *arguments, **named),
    }
    blocks = residual_map(model, *arguments, **named).depth
    if blocks:
        runs["convert"] = lambda: convert(model, bench.scheme, *arguments, **named)
    seconds = seconds_in_turns(runs, bench.rounds)
    table = ratio_table("task", seconds, seconds.div(seconds["forward"], axis=0))
    table.insert(0, "network", name)
    table.insert(1, "blocks", blocks)
    return table


def _bert() -> tuple[nn.Module, Inputs]:
    transformers = import_extra("zoo", "The benchmark of BERT", "transformers")
    model = transformers.BertModel(transformers.BertConfig())
    return model, {"input_ids": torch.randint(model.config.vocab_size, (2, 128))}
