"""Train thirty networks of ten kinds under every scheme that applies to them, at equal budget.

Run it as `python benchmarks/schemes_by_kind.py --out FILE.jsonl`. It appends each finished run to the file, and goes
on where it was interrupted. `python benchmarks/schemes_by_kind_table.py FILE.jsonl` makes the tables of
docs/results/schemes_by_kind.md.
"""

from __future__ import annotations

import json
import platform
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import cached_property, partial
from pathlib import Path
from statistics import mean
from time import perf_counter, time
from typing import Any, NamedTuple

import tasks_by_kind as tasks
import torch
from side_by_side import SideBySide
from torch import Tensor, nn

# The networks are rows of the gallery.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from gallery import kinds_of_images as images, kinds_of_sequences as sequences, kinds_of_structures as structures

import normless as nl
from normless.errors import NormlessError
from normless.probes import has_diverged

STEPS, BATCH, LAST = 300, 32, 30
SCHEMES = (
    *("as_written", "skipinit", "fixup", "nf_resnet", "dyt", "group_norm"),
    *("none", "t_fixup", "zeroinit(dropout=0)", "sqrt2", "peri_norm"),
)
RATES = {"sgd": (0.006, 0.02, 0.06, 0.2, 0.6), "adamw": (0.0003, 0.001, 0.003, 0.01, 0.03)}
DECAY = {"sgd": 5e-4, "adamw": 0.01}
SEEDS = (0, 1, 2)


class Run(NamedTuple):
    """How a network is trained."""

    optimizer: str
    rate: float
    seed: int


class Entry(NamedTuple):
    """A network and its data."""

    kind: str
    name: str
    build: Callable[[], nn.Module]
    task: Callable[[], tasks.Task]


KINDS: dict[str, tuple[tuple[str, Callable[[], nn.Module], Callable[[], tasks.Task]], ...]] = {
    "image classifiers": (
        ("ResNet-V2", images.ResNetV2, tasks.digits),
        ("ResNet-V1", images.ResNetV1, tasks.digits),
        ("MobileNetV2", images.MobileNet, tasks.digits),
    ),
    "embeddings": (
        ("cosine classifier", images.CosineClassifier, tasks.digits),
        ("two towers", images.TwoTowers, tasks.halves),
        ("contrastive embedding", images.Embedder, tasks.likeness),
    ),
    "detectors": (
        ("class and box", images.Detector, tasks.boxes),
        ("dense detector", images.GridDetector, tasks.cells),
        ("three heads", images.ManyHeads, tasks.turned),
    ),
    "image to image": (
        ("diffusion", images.Diffusion, tasks.noise_levels),
        ("U-Net", images.UNet, tasks.masks),
        ("DnCNN", images.DnCNN, tasks.denoising),
    ),
    "language models": (
        ("GPT, layer norm", partial(sequences.GPT, "gpt2"), tasks.text),
        ("GPT, RMS and QK norm", partial(sequences.GPT, "llama"), tasks.text),
        ("GPT, post-norm", partial(sequences.GPT, "post"), tasks.text),
    ),
    "image tokens": (
        ("ViT", sequences.ViT, tasks.digits),
        ("MLP-Mixer", sequences.Mixer, tasks.digits),
        ("ConvNeXt", sequences.ConvNeXt, tasks.digits),
    ),
    "audio and series": (
        ("TCN", sequences.TCN, tasks.marked_sums),
        ("WaveNet", sequences.WaveNet, tasks.samples),
        ("Conformer", sequences.Conformer, tasks.tones),
    ),
    "video and volumes": (
        ("R(2+1)D", structures.Video, tasks.motion),
        ("V-Net", structures.VNet, tasks.ball_masks),
        ("3-D ResNet", structures.Volumes, tasks.ball_counts),
    ),
    "graphs": (
        ("GIN", structures.GIN, tasks.graphs),
        ("message passing", structures.MessagePassing, tasks.nodes),
        ("GAT", structures.GAT, tasks.nodes),
    ),
    "tables, control, VAE": (
        ("tabular ResNet", structures.TabularResNet, tasks.rows),
        ("dueling Q-network", structures.Dueling, tasks.returns),
        ("VAE", structures.VAE, tasks.reconstruction),
    ),
}
NETWORKS = tuple(Entry(kind, *row) for kind, entries in KINDS.items() for row in entries)


class Bench:
    """A network of the table with its data and its residual map, and what a scheme makes of it."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._converted: dict[tuple[str, int], nn.Module] = {}
        self._maps: dict[str, nl.ResidualMap] = {}

    @cached_property
    def task(self) -> tasks.Task:
        """The data; made once."""
        return self.entry.task()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The first batch of training."""
        return self.task.train.at(torch.arange(BATCH)).inputs

    @cached_property
    def residual_map(self) -> nl.ResidualMap:
        """The map of the network, the same at every seed."""
        return nl.residual_map(self.built(0), *self.inputs)

    def built(self, seed: int) -> nn.Module:
        """The network with the weights of a seed, which also start what a scheme draws."""
        torch.manual_seed(seed)
        return self.entry.build()

    def converted(self, scheme: str, seed: int) -> nn.Module:
        """The network under a scheme, to be trained; what a scheme refuses raises a NormlessError."""
        key = (scheme, seed)
        if key not in self._converted:
            network = self.built(seed)
            self._converted[key] = nl.convert(network, scheme, *self.inputs, residual_map=self.residual_map)
        return deepcopy(self._converted[key])

    def trained(self, scheme: str, runs: Sequence[Run]) -> list[dict[str, Any]]:
        """The losses of runs side by side; the weights and the batches of a run depend on its seed alone."""
        rows = SideBySide([self.converted(scheme, run.seed) for run in runs], self.task.loss)
        if scheme not in self._maps:
            self._maps[scheme] = nl.residual_map(rows.networks[0], *self.inputs)
        optimizers = [
            optimizer_of(network, self._maps[scheme], run) for network, run in zip(rows.networks, runs, strict=True)
        ]
        chosen = torch.stack([self.batches(run.seed) for run in runs], 1)
        losses: list[list[float]] = []
        for done, batch in enumerate(chosen):
            for optimizer, run in zip(optimizers, runs, strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = run.rate * group["rate_scale"] * schedule(done)
            losses.append(rows.backward(self.task.train.at(batch)))
            for optimizer in optimizers:
                optimizer.step()
        rows.write_back()
        return [
            self.outcome(network, history)
            for network, history in zip(rows.networks, zip(*losses, strict=True), strict=True)
        ]

    def batches(self, seed: int) -> Tensor:
        """The examples of every step."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(len(self.task.train.inputs[0]), (STEPS, BATCH), generator=generator)

    def outcome(self, network: nn.Module, losses: Sequence[float]) -> dict[str, Any]:
        """What is written down of a run that has ended."""
        held_out = float("nan") if any(map(has_diverged, losses)) else self.held_out(network)
        if has_diverged(held_out):
            return {"diverged": True}
        return {"train": round(mean(losses[-LAST:]), 5), "held_out": round(held_out, 5)}

    def held_out(self, network: nn.Module) -> float:
        """The mean loss on what is held out, in batches of the size of training, in evaluation mode."""
        network.eval()
        with torch.no_grad():
            rows = torch.arange(tasks.HELD_OUT).split(BATCH)
            batches = [self.task.held_out.at(some) for some in rows]
            return mean(float(self.task.loss(network(*batch.inputs), *batch.targets)) for batch in batches)


def optimizer_of(network: nn.Module, residual_map: nl.ResidualMap, run: Run) -> torch.optim.Optimizer:
    """SGD with momentum 0.9 or AdamW over the groups of `nl.param_groups`."""
    decay = DECAY[run.optimizer]
    groups = nl.param_groups(network, lr=run.rate, weight_decay=decay, residual_map=residual_map)
    if run.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=run.rate, momentum=0.9, fused=True)
    return torch.optim.AdamW(groups, lr=run.rate, fused=True)


def schedule(done: int) -> float:
    """A linear warm-up over a tenth of the steps and a linear fall to 0."""
    return min((done + 1) / (STEPS / 10), (STEPS - done) / (STEPS * 0.9), 1.0)


class Results:
    """A file of finished runs, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def find(self, **key: Any) -> list[dict[str, Any]]:
        """The rows with these values."""
        return [row for row in self.rows if all(row.get(name) == value for name, value in key.items())]

    def add(self, **row: Any) -> None:
        """Append a row to the file."""
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def chosen_rate(rows: list[dict[str, Any]]) -> float | None:
    """The rate of the lowest training loss on seed 0; None where all diverged."""
    finished = [row for row in rows if "train" in row and row["seed"] == 0]
    return min(finished, key=lambda row: row["train"])["rate"] if finished else None


def pending(results: Results, key: dict[str, Any]) -> Iterator[list[Run]]:
    """The runs that a scheme on a network still needs: all rates on seed 0, then the best of them on the others."""
    runs = [Run(optimizer, rate, 0) for optimizer, rates in RATES.items() for rate in rates]
    yield [run for run in runs if not results.find(**key, **run._asdict())]
    best = {optimizer: chosen_rate(results.find(**key, optimizer=optimizer)) for optimizer in RATES}
    runs = [Run(name, rate, seed) for name, rate in best.items() if rate is not None for seed in SEEDS[1:]]
    yield [run for run in runs if not results.find(**key, **run._asdict())]


def carry_out(bench: Bench, scheme: str, results: Results) -> None:
    """Run what is missing of a scheme on a network."""
    key = {"network": bench.entry.name, "scheme": scheme}
    for runs in pending(results, key):
        before = perf_counter()
        for run, outcome in zip(runs, bench.trained(scheme, runs) if runs else (), strict=True):
            results.add(**key, **run._asdict(), **outcome, seconds=round((perf_counter() - before) / len(runs), 2))


def refusal(bench: Bench, scheme: str) -> str:
    """Why a network does not take a scheme, or nothing."""
    try:
        bench.converted(scheme, 0)
    except NormlessError as error:
        return str(error)
    return ""


def in_turns(first: int, last: int) -> list[Entry]:
    """The networks at these places of their kinds: the first of each kind, the second of each, the third."""
    return [entry for turn in range(first, last) for entry in NETWORKS[turn::3]]


def main() -> None:
    """Run what is missing."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--turns", nargs=2, type=int, default=(0, 3), help="which networks of each kind, from 0 to 3")
    parser.add_argument("--networks", nargs="+", default=(), help="their names, in the place of turns")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no network after so long")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results, end = Results(arguments.out), time() + 60 * arguments.minutes
    if not results.find(record="versions"):
        results.add(record="versions", torch=torch.__version__, python=platform.python_version())
    named = [entry for entry in NETWORKS if entry.name in arguments.networks]
    for entry in named or in_turns(*arguments.turns):
        bench = Bench(entry)
        for scheme in arguments.schemes:
            key = {"network": entry.name, "scheme": scheme}
            if time() > end or any("refused" in row for row in results.find(**key)):
                continue
            reason = refusal(bench, scheme)
            if reason:
                results.add(**key, refused=reason)
            else:
                carry_out(bench, scheme, results)


if __name__ == "__main__":
    main()
