"""The cost of a watched training step relative to a plain one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from normless.doctor import Watch
from normless.models import resnet_cifar
from normless_lab.bench.step import ImageBench, training_step
from normless_lab.bench.timing import ratio_table, seconds_in_turns


@dataclass(frozen=True)
class WatchBench(ImageBench):
    """The ResNet and its batch; the transformer has 4 layers of width 128 and reads 16 sentences of 64 tokens."""

    batch_size: int = 16
    interval: int = 20


def measure_watch(bench: WatchBench) -> pd.DataFrame:
    """Time one interval of watched steps, including its measured step, and as many plain steps.

    A row per network, plain and watched, see `ratio_table`; ratios are to the plain network.
    """
    tables = []
    for name, make in {f"resnet_cifar({bench.depth})": _resnet, "transformer(4)": _transformer}.items():
        plain, watched = make(bench), make(bench)
        watch = Watch(watched[0], bench.interval)
        steps = {
            f"{name}, plain": _steps(*plain, bench.interval),
            f"{name}, watched": _steps(*watched, bench.interval),
        }
        seconds = seconds_in_turns(steps, bench.rounds) / bench.interval
        watch.close()
        tables.append(ratio_table("network", seconds, seconds.div(seconds[f"{name}, plain"], axis=0)))
    return pd.concat(tables, ignore_index=True)


def _steps(network: nn.Module, inputs: Tensor, labels: Tensor, count: int) -> Callable[[], None]:
    step = training_step(network, inputs, labels)

    def run() -> None:
        for _ in range(count):
            step()

    return run


def _resnet(bench: WatchBench) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return resnet_cifar(bench.depth), *bench.batch()


def _transformer(_: WatchBench) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    network = nn.Sequential(nn.Embedding(1000, 128), encoder, nn.Flatten(), nn.Linear(128 * 64, 10))
    return network, torch.randint(1000, (16, 64)), torch.randint(10, (16,))
