"""What it costs to take the norms out of trained networks: small transformers and a ResNet, trained here.

Each network is trained, then fine-tuned twice on the same batches: with `remove_norms`, and without. Run it as
`python benchmarks/norms_removed.py [--data FILE.txt] [--networks NAME …]`; finished runs are in norms_removed.jsonl
and are not repeated. The table goes into docs/trained.md.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from small_transformers import Part, SmallTransformer, SmallTransformerConfig, task_of
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import resnet_cifar
from normless_lab.data import Augmentation, load_data

HOME = Path(__file__).parent
RESULTS, PAGE = HOME / "norms_removed.jsonl", HOME.parent / "docs" / "trained.md"
BEGIN, END = "<!-- norms removed -->", "<!-- end -->"
CONTEXT, BATCH = 32, 16
CLIP = 1.0
WARMUP = 20


class Task(NamedTuple):
    """Training and test examples, and the number of classes or of different characters."""

    train: Part
    test: Part
    classes: int


@dataclass(frozen=True)
class Network:
    """A network of the study.

    Attributes:
        task: `text`, `digits` or `images`.
        steps, rate: of AdamW in training, with a linear warm-up, then a linear fall to a tenth of the rate.
        tuning, tuning_rate: of AdamW in fine-tuning, with a linear warm-up and a linear fall in the last third.
        norm: `pre` or `post`; None for a ResNet with group norm.
        kind: LayerNorm or RMSNorm.
        qk: whether queries and keys are normalized.
        tied: whether the classifier has the embedding's weight.
        seeds: the number of runs; one of the 360 test images is 0.3 points.
        start, interval, spread_weight: of `remove_norms`.
    """

    name: str
    task: str
    steps: int
    rate: float
    tuning: int
    tuning_rate: float
    norm: str | None = "pre"
    kind: type[nn.Module] = nn.LayerNorm
    qk: bool = False
    tied: bool = False
    layers: int = 3
    width: int = 32
    seeds: int = 3
    start: int = 20
    interval: int = 10
    spread_weight: float = 0.1


# The last settings of the ViTs were chosen on the seeds 20 to 25.
SLOWLY: dict[str, Any] = {"seeds": 9, "start": 60, "interval": 20, "spread_weight": 1.0}
NETWORKS = (
    Network("GPT, pre-norm, tied", "text", 2400, 4e-3, 500, 1e-3, tied=True),
    Network("GPT, RMS norm, QK-norm", "text", 2400, 4e-3, 500, 1e-3, kind=nn.RMSNorm, qk=True),
    Network("GPT, post-norm", "text", 2400, 3e-3, 500, 1e-3, norm="post"),
    Network("ViT, pre-norm", "digits", 1000, 2e-3, 600, 5e-4, **SLOWLY),
    Network("ViT, post-norm", "digits", 1000, 2e-3, 600, 5e-4, norm="post", **SLOWLY),
    Network("ResNet-14, group norm", "images", 250, 2e-3, 250, 2e-4, norm=None),
)


@dataclass(frozen=True)
class Row:
    """A network and a seed: test losses in nats and accuracies after training and both fine-tunings.

    Attributes:
        norms: the number of norms removed.
        taken_back: freezings that were taken back.
        left: norms that are not folded into weights but are affine maps.
        difference: the largest difference of outputs by folding, relative to the largest output.
    """

    network: str
    data: str
    seed: int
    trained: tuple[float, float]
    tuned: tuple[float, float]
    removed: tuple[float, float]
    norms: int
    taken_back: int
    left: int
    difference: float
    seconds: float


def text_task(file: Path | None) -> Task:
    """The sentences of the embedded grammar, or a file, by characters; every tenth part of a file is held out."""
    if file is None:
        embedded = task_of("text")
        return Task(embedded.train, embedded.test, embedded.classes)
    text = file.read_text(encoding="utf-8")
    frequent = sorted(character for character, count in Counter(text).items() if count >= 50)
    number = {character: index for index, character in enumerate(frequent)}
    tokens = torch.tensor([number[character] for character in text if character in number])
    windows = tokens.unfold(0, CONTEXT + 1, CONTEXT)
    held_out = torch.arange(len(windows)) // 20 % 10 == 9
    train, test = windows[~held_out], windows[held_out]
    return Task(Part(train[:, :-1], train[:, 1:]), Part(test[:, :-1], test[:, 1:]), len(frequent))


def image_task() -> Task:
    """The embedded digits as images."""
    data = load_data("digits")
    (train,) = data.train_batches(data.train_size, seed=0, epoch=0, augmentation=Augmentation())
    images, labels = next(iter(data.test_batches(data.test_size)))
    return Task(Part(train.inputs, train.targets), Part(images, labels), data.classes)


def task(network: Network, file: Path | None) -> Task:
    """The data of a network."""
    if network.task == "text":
        return text_task(file)
    if network.task == "images":
        return image_task()
    digits = task_of("digits")
    return Task(digits.train, digits.test, digits.classes)


def build(network: Network, data: Task) -> nn.Module:
    """The network with initial weights."""
    if network.norm is None:
        return nl.convert(resnet_cifar(14, classes=data.classes, in_channels=1), "group_norm(groups=4)")
    config = SmallTransformerConfig(
        task="text" if network.task == "text" else "digits",
        scheme="as_written",
        norm=network.norm,
        layers=network.layers,
        width=network.width,
    )
    embedding = nn.Embedding(data.classes, network.width) if network.task == "text" else nn.Linear(4, network.width)
    net: nn.Module = SmallTransformer(embedding, data.classes, config)
    for path, module in list(net.named_modules()):
        if isinstance(module, nn.LayerNorm) and network.kind is nn.RMSNorm:
            parent, _, name = path.rpartition(".")
            setattr(net.get_submodule(parent), name, nn.RMSNorm(network.width, eps=1e-5))
    if network.qk:
        net = nl.convert(net, "qk_norm", data.train.inputs[:2])
    if network.tied:
        nn.init.normal_(net.embedding.weight, std=network.width**-0.5)
        net.classifier.weight = net.embedding.weight
    return net


def batches(data: Task, steps: int, seed: int) -> Iterator[Part]:
    """Random batches, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(data.train.inputs), (BATCH,), generator=generator)
        yield Part(*(values[rows] for values in data.train))


def loss_of(net: nn.Module, part: Part) -> Tensor:
    """The mean cross entropy of a batch."""
    return F.cross_entropy(net(part.inputs).flatten(0, -2), part.targets.flatten())


def train(
    net: nn.Module,
    data: Task,
    steps: int,
    rate: float,
    seed: int,
    schedule: Callable[[float], float],
    removal: nl.affine.Removal | None = None,
) -> None:
    """Train with AdamW and clipped gradients; `schedule` is the share of the rate at a share of the steps."""
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01, fused=True)
    for number, part in enumerate(batches(data, steps, seed)):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (number + 1) / WARMUP) * schedule(number / steps)
        loss = loss_of(net, part)
        if removal is not None:
            loss = removal.loss(loss)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        if removal is not None:
            removal.step()


@torch.no_grad()
def tested(net: nn.Module, data: Task) -> tuple[float, float]:
    """The loss and the accuracy on the test set."""
    net.eval()
    logits = torch.cat([net(inputs).flatten(0, -2) for inputs in data.test.inputs.split(200)])
    targets = data.test.targets.flatten()
    return F.cross_entropy(logits, targets).item(), (logits.argmax(-1) == targets).double().mean().item()


def run(network: Network, seed: int, file: Path | None) -> Row:
    """Train, fine-tune with and without removal, and fold."""
    start, data = time.process_time(), task(network, file)
    torch.manual_seed(seed)
    net = build(network, data)
    train(net, data, network.steps, network.rate, seed, lambda share: 1 - 0.9 * share)
    trained, tuned, removed = tested(net, data), deepcopy(net), net
    settings = (data, network.tuning, network.tuning_rate, 1000 + seed, lambda share: min(1.0, 3 * (1 - share)))
    train(tuned, *settings)
    example = data.train.inputs[:4]
    removal = nl.remove_norms(
        removed, example, start=network.start, interval=network.interval, spread_weight=network.spread_weight
    )
    train(removed, *settings, removal=removal)
    folded, report = nl.fold(removal.finish().eval(), example)
    with torch.no_grad():
        expected, made = removed(data.test.inputs[:64]), folded(data.test.inputs[:64])
    return Row(
        network=network.name,
        data=(file.name if file else "grammar") if network.task == "text" else "digits",
        seed=seed,
        trained=trained,
        tuned=tested(tuned, data),
        removed=tested(folded, data),
        norms=len(removal.places),
        taken_back=sum(freezing.outcome == "taken back" for freezing in removal.history),
        left=report.counts["affine"],
        difference=((made - expected).abs().max() / expected.abs().max()).item(),
        seconds=round(time.process_time() - start),
    )


def rows() -> list[dict[str, Any]]:
    """Return the finished runs."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines]


def table() -> str:
    """Return the table of the page: means over seeds of test losses in nats and of accuracies."""
    head = "| network | data, steps | seeds | norms | trained | fine-tuned | norms removed | cost |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for network in NETWORKS:
        own = [row for row in rows() if row["network"] == network.name]
        if not own:
            continue
        at = 0 if network.task == "text" else 1
        values = [[row[key][at] for row in own] for key in ("trained", "tuned", "removed")]
        costs = [after - before for before, after in zip(*values[1:], strict=True)]
        cells = [_words(mean(each), network) for each in values]
        range_of = f"{_words(min(costs), network, sign='+')} to {_words(max(costs), network, sign='+')}"
        what = f"{own[0]['data']}, {network.steps:,} + {network.tuning}"
        cost = f"**{_words(mean(costs), network, sign='+')}** ({range_of})"
        lines.append(f"| {network.name} | {what} | {len(own)} | {own[0]['norms']} | {' | '.join(cells)} | {cost} |")
    return "\n".join(lines)


def _words(value: float, network: Network, sign: str = "") -> str:
    """Format a loss, an accuracy in percent, or with a sign a difference of accuracies in points."""
    return f"{value:{sign}.3f}" if network.task == "text" else f"{100 * value:{sign}.1f}{'' if sign else ' %'}"


def write() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Run what is missing, and write the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a text file in place of the embedded grammar")
    parser.add_argument("--networks", nargs="*", default=[network.name for network in NETWORKS])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(max(network.seeds for network in NETWORKS)):
        for network in NETWORKS:
            if seed >= network.seeds:
                continue
            known = any((row["network"], row["seed"]) == (network.name, seed) for row in rows())
            if network.name in arguments.networks and not known:
                row = run(network, seed, arguments.data)
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
    write()


if __name__ == "__main__":
    main()
