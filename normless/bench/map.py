"""The cost of mapping a network beyond the export that shows its dataflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.export import export

from normless.arguments import arguments_of
from normless.bench.timing import seconds_in_turns
from normless.extras import import_extra
from normless.models import Inputs, build_with_inputs
from normless.residual import residual_map

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
    """Networks to export and map in turns, with random weights, in eval mode, on two examples.

    Each is given as `build_model` takes it, or `transformers:bert` for BERT base on 128 tokens.
    """

    networks: Sequence[str] = NETWORKS
    rounds: int = 5


def measure_map(bench: MapBench) -> pd.DataFrame:
    """Time `torch.export.export` alone and `residual_map`, which exports too, in turns.

    A row per network: network, blocks, export and map (seconds, median over the rounds), and as in `ratio_table` the
    ratios of the map to the export. MissingExtraError if timm or transformers is needed and not installed.
    """
    return pd.DataFrame([_measure(name, bench.rounds) for name in bench.networks])


def _measure(name: str, rounds: int) -> dict[str, Any]:
    model, inputs = _bert() if name == BERT else build_with_inputs(name)
    arguments, named = arguments_of(inputs)
    model.eval()
    runs = {
        "export": lambda: export(model, arguments, named, strict=False),
        "map": lambda: residual_map(model, *arguments, **named),
    }
    seconds = seconds_in_turns(runs, rounds)
    ratios = seconds["map"] / seconds["export"]
    spread: dict[str, Any] = {"ratio": ratios.median(), "lowest": ratios.min(), "highest": ratios.max()}
    blocks = residual_map(model, *arguments, **named).depth
    return {"network": name, "blocks": blocks, **dict(seconds.median())} | spread


def _bert() -> tuple[nn.Module, Inputs]:
    transformers = import_extra("zoo", "The benchmark of BERT", "transformers")
    model = transformers.BertModel(transformers.BertConfig())
    return model, {"input_ids": torch.randint(model.config.vocab_size, (2, 128))}
