"""What it costs to map a network beyond the export that shows its dataflow."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import pandas as pd
from torch import nn
from torch.export import export

from normless.arguments import arguments_of
from normless.models import Inputs, build_with_inputs
from normless.residual import residual_map

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
    "transformers:bert",
)


@dataclass(frozen=True)
class MapBench:
    """What to measure.

    Attributes:
        networks: each as `build_model` takes it, or `transformers:bert` for BERT base on 128 tokens; all with random
            weights, in eval mode, on two examples.
        rounds: how often every network is exported and mapped, in turns.
    """

    networks: Sequence[str] = NETWORKS
    rounds: int = 5


def measure_map(bench: MapBench) -> pd.DataFrame:
    """Time `torch.export.export` alone and `residual_map`, which exports too, in turns.

    Returns:
        A row per network: name, blocks, export and map (seconds, median over the rounds), ratio (median over the
        rounds of the map's time to the export's in the same round), lowest and highest of these ratios.

    Raises:
        ModuleNotFoundError: timm or transformers is needed and not installed.
    """
    return pd.DataFrame([_measure(name, bench.rounds) for name in bench.networks])


def _measure(name: str, rounds: int) -> dict[str, Any]:
    model, inputs = _network(name)
    arguments, named = arguments_of(inputs)
    model.eval()
    runs: dict[str, Callable[[], object]] = {
        "export": lambda: export(model, arguments, named, strict=False),
        "map": lambda: residual_map(model, *arguments, **named),
    }
    # The first run of each pays for imports and caches.
    runs["export"]()
    blocks = residual_map(model, *arguments, **named).depth
    times: dict[str, list[float]] = {what: [] for what in runs}
    for turn in range(rounds):
        for what in sorted(runs, reverse=turn % 2 == 1):
            times[what].append(_seconds(runs[what]))
    seconds = pd.DataFrame(times)
    ratio = seconds["map"] / seconds["export"]
    return {
        "network": name,
        "blocks": blocks,
        "export": float(seconds["export"].median()),
        "map": float(seconds["map"].median()),
        "ratio": float(ratio.median()),
        "lowest": float(ratio.min()),
        "highest": float(ratio.max()),
    }


def _seconds(run: Callable[[], object]) -> float:
    # A graph holds cycles; what the last run left behind must not be collected at this one's cost.
    gc.collect()
    start = perf_counter()
    run()
    return perf_counter() - start


def _network(name: str) -> tuple[nn.Module, Inputs]:
    return _bert() if name == "transformers:bert" else build_with_inputs(name)


def _bert() -> tuple[nn.Module, Inputs]:
    try:
        from transformers import BertConfig, BertModel
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "transformers is not installed; install it with: pip install 'normless[zoo]'", name="transformers"
        ) from error
    import torch

    model = BertModel(BertConfig())
    return model, {"input_ids": torch.randint(model.config.vocab_size, (2, 128))}
