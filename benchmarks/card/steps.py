"""Training steps on a GPU: time in eager mode, as a CUDA graph and compiled, memory and share of the peak speed."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pkgutil import resolve_name
from time import perf_counter
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from benchmarks.card.settings import MODES, CardBench
from normless.residual import residual_map
from normless_lab.bench._step import (
    REFERENCE,
    Bare,
    HandWrittenFixup,
    StepBench,
    Timer,
    opened,
    ratio_table,
    seconds_in_turns,
    step_on_batches,
)
from normless_lab.train._step_graph import WARMUP, StepGraph

BATCH_NORM = "batch_norm"
GRAPH = "graph"
# Largest ratios to the bare network, both as one graph.
AIMS: Mapping[str, float] = {"skipinit(alpha=1)": 1.05, "fixup": 1.20}
# Versions of one function that torch compiles: blocks of all networks and schemes share it, at each batch size.
VERSIONS = 64

Batch = tuple[Tensor, Tensor]
Networks = Mapping[str, nn.Module]


@dataclass
class Prepared:
    """A step that can be timed, or the reason why it cannot.

    Attributes:
        action: executes the step.
        mebibytes: on a GPU, peak memory of a step, with gradients, the state of the optimizer and the batch of a
            graph, without network and batch.
        seconds: time of the preparation, with compilation and capture.
        note: why there is no action.
        close: releases the step.
    """

    action: Callable[[], object] | None = None
    mebibytes: float | None = None
    seconds: float | None = None
    note: str | None = None
    close: Callable[[], object] = field(default=lambda: None)


def measure_steps(bench: CardBench, timer: Timer) -> Iterator[list[dict[str, Any]]]:
    """Time the steps of all schemes of a network, for each mode and batch size; yield a row per scheme."""
    networks, flops = [], []
    for steps in bench.step_benches(1):
        networks.append({name: opened(network) for name, network in steps.networks().items()})
        flops.append(3 * forward_flops(networks[-1][REFERENCE], steps.placed_batch()[0]))
    compiler = Compiler(bench.limit)
    for mode in sorted(bench.modes, key=MODES.index):
        for batch_size in bench.batch_sizes:
            for steps, schemes, flops_of_image in zip(bench.step_benches(batch_size), networks, flops, strict=True):
                rows = _measured(steps, schemes, mode, compiler, timer)
                for row in rows:
                    if "milliseconds" in row:
                        row["TFLOP/s"] = flops_of_image * batch_size / row["milliseconds"] / 1e9
                yield rows


def _measured(
    steps: StepBench, networks: Networks, mode: str, compiler: Compiler, timer: Timer
) -> list[dict[str, Any]]:
    """Return the rows of the schemes of a network in one mode; ratios are to the bare network in the same rounds."""
    batch = steps.placed_batch()
    ready = {name: prepared(network, batch, mode, partial(compiler, network)) for name, network in networks.items()}
    actions = {name: step.action for name, step in ready.items() if step.action is not None}
    with _frozen():
        seconds = seconds_in_turns(actions, steps.rounds, timer)
    for name, step in ready.items():
        step.close()
        networks[name].zero_grad()
    del actions
    rows = [
        {
            "network": steps.network,
            "batch": steps.batch_size,
            "mode": mode,
            "scheme": name,
            **_timing(seconds, name),
            "preparation": step.seconds,
            "MiB": step.mebibytes,
            "note": step.note,
        }
        for name, step in ready.items()
    ]
    return _judged(rows) if mode == GRAPH else rows


def _timing(seconds: pd.DataFrame, name: str) -> dict[str, float]:
    """Return milliseconds (median), and the ratio to the bare network: median, lowest and highest of the rounds."""
    if name not in seconds:
        return {}
    reference = seconds[REFERENCE] if REFERENCE in seconds else float("nan")
    own = seconds[[name]]
    row = ratio_table("scheme", own, own.div(reference, axis=0)).iloc[0]
    ratios = {part: float(row[part]) for part in ("ratio", "lowest", "highest") if row[part] == row[part]}
    return {"milliseconds": 1000 * float(row["seconds"]), **ratios}


def _judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with their aims: a largest ratio, and a ratio below that of batch norm."""
    batch_norm = next((row.get("ratio") for row in rows if row["scheme"] == BATCH_NORM), None)
    for row in rows:
        aim, ratio = AIMS.get(row["scheme"]), row.get("ratio")
        if aim is None or ratio is None:
            continue
        row |= {"aim": aim, "result": _result(ratio <= aim)}
        if batch_norm is not None:
            row["below_batch_norm"] = _result(ratio < batch_norm)
    return rows


def _result(passes: bool) -> str:
    return "pass" if passes else "miss"


def prepared(network: nn.Module, batch: Batch, mode: str, compile_: Callable[[Tensor], None]) -> Prepared:
    """Return a step on a batch in bfloat16 by autocast, after the steps for warm-up and capture."""
    device = batch[0].device
    if mode != "eager" and device.type != "cuda":
        return Prepared(note="on a card only")
    _release(device)
    before = _allocated(device)
    start = perf_counter()
    step, optimizer = step_on_batches(network, torch.bfloat16)
    graph = None if mode == "eager" else StepGraph(step, network, optimizer)
    try:
        if mode == "compiled":
            compile_(batch[0][:2])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (graph or step)(batch)
            # Memory of the compilation does not count.
            _release(device)
            for _ in range(WARMUP):
                (graph or step)(batch)
    except Exception as error:  # compilers raise errors of many kinds
        network.zero_grad()
        return Prepared(note=f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}")
    if graph is not None and graph.refusal is not None:
        return Prepared(note=f"not captured: {graph.refusal}")
    _synchronize(device)
    return Prepared(
        action=partial(graph or step, batch),
        mebibytes=None if before is None else (torch.cuda.max_memory_allocated(device) - before) / 2**20,
        seconds=perf_counter() - start,
        close=(lambda: None) if graph is None else graph.close,
    )


class Compiler:
    """Compiles networks by block, each once, until a limit of seconds since the first has passed."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._start: float | None = None
        self._compiled: set[int] = set()

    def __call__(self, network: nn.Module, inputs: Tensor) -> None:
        """Let `torch.compile` compile the blocks in their next pass; TimeoutError beyond the limit."""
        self._start = self._start or perf_counter()
        if perf_counter() - self._start > self._limit:
            raise TimeoutError(f"the limit of {self._limit} seconds for compilation has passed.")
        if id(network) in self._compiled:
            return
        self._compiled.add(id(network))
        config: Any = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, VERSIONS)
        if isinstance(network, Bare | HandWrittenFixup):
            for block in network.blocks:
                block.compile(dynamic=False)
        else:
            compile_blocks = resolve_name("normless_lab.train._execution:compile_blocks")
            compile_blocks(network, residual_map=residual_map(network, inputs))


@torch.no_grad()
def forward_flops(network: nn.Module, images: Tensor) -> int:
    """Return the floating-point operations of the convolutions and matrix products of a forward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        network(images)
    return int(counter.get_total_flops())


def matrix_product_flops(bench: CardBench, timer: Timer) -> float:
    """Return the operations per second of a product of square bfloat16 matrices, the fastest of the rounds."""
    size = bench.matrix
    first, second = (torch.randn(size, size, device=bench.device).to(torch.bfloat16) for _ in range(2))
    seconds = seconds_in_turns({"product": partial(torch.mm, first, second)}, bench.rounds, timer)
    return float(2 * size**3 / seconds["product"].min())


@contextmanager
def _frozen() -> Iterator[None]:
    """In the body, the garbage collector looks at new objects only, which is faster."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _release(device: torch.device) -> None:
    """Free cached memory and reset the peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _allocated(device: torch.device) -> int | None:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
