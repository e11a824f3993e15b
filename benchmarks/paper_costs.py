"""Estimate what every training artefact of the papers costs at paper budget, and write the table to docs/scale.md.

Run it from anywhere: `python benchmarks/paper_costs.py [OUT.md]`. The table follows what artefacts declare that they
train. Steps are measured meanwhile, so that nothing else should run; it takes some ten minutes.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from normless.models import build_model, transformer
from normless_lab.bench import seconds_in_turns
from normless_lab.train import Settings
from normless_papers.artefact import Artefact, Context, artefacts

EXAMPLES = 2


@dataclass(frozen=True)
class StepCost:
    """Of a pass forward and back.

    Attributes:
        flops: floating-point operations of convolutions and matrix products per example, two for each product that is
            summed.
        calls: operators called, whatever the batch size; each starts a kernel, or a few.
    """

    flops: float
    calls: int


@cache
def step_cost(model: str, channels: int, side: int, classes: int) -> StepCost:
    """Count a step of the network before its scheme's edits, on square images; nothing is computed."""
    network = build_model(model, classes=classes, image_shape=(channels, side, side)).to("meta").train()
    images = torch.empty(EXAMPLES, channels, side, side, device="meta")
    labels = torch.empty(EXAMPLES, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as flops, _Calls() as calls:
        F.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
    return StepCost(flops.get_total_flops() / EXAMPLES, calls.count)


class _Calls(TorchDispatchMode):
    """Counts operators that compute something; views only rename what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


# Examples of the measured steps, and how often each is taken; the fastest counts.
FEW, MANY, TIMES = 2, 8, 2
# Tokens of a sentence.
LENGTH = 25


@dataclass(frozen=True)
class StepSeconds:
    """Of a pass forward and back: seconds whatever the batch size, and seconds per example."""

    fixed: float
    each: float

    def of(self, examples: float) -> float:
        """Of a step with so many examples."""
        return self.fixed + self.each * examples


@cache
def image_step(model: str, channels: int, side: int, classes: int) -> StepSeconds:
    """Of the network before its scheme's edits, on square images."""
    network = build_model(model, classes=classes, image_shape=(channels, side, side)).train()

    def loss(examples: int) -> Tensor:
        images, labels = torch.randn(examples, channels, side, side), torch.randint(classes, (examples,))
        return F.cross_entropy(network(images), labels)

    return _measured(loss)


@cache
def translation_step(model: str, vocabulary: int) -> StepSeconds:
    """Of an encoder-decoder; an example is a token on either side."""
    network = build_model(f"{model.removesuffix(')')}, vocabulary={vocabulary})").train()

    def loss(examples: int) -> Tensor:
        source, target, labels = torch.randint(4, vocabulary, (3, examples, LENGTH))
        return F.cross_entropy(network(source, target).flatten(0, 1), labels.flatten())

    return _per_token(_measured(loss))


@cache
def bert_step() -> StepSeconds:
    """Of BERT base as it is, the classifier of sentences in two classes; an example is a token."""
    network = build_model("transformers:bert()", classes=2).train()

    def loss(examples: int) -> Tensor:
        tokens, labels = torch.randint(1000, 30_000, (examples, LENGTH)), torch.randint(2, (examples,))
        return F.cross_entropy(network(tokens), labels)

    return _per_token(_measured(loss))


def _measured(loss: Callable[[int], Tensor]) -> StepSeconds:
    """From the fastest steps with few and with many examples; the first of either is not counted."""

    def step(examples: int) -> None:
        loss(examples).backward()  # type: ignore[no-untyped-call]

    actions = {"few": partial(step, FEW), "many": partial(step, MANY)}
    few, many = map(float, seconds_in_turns(actions, TIMES).min())
    each = max((many - few) / (MANY - FEW), 0.0)
    return StepSeconds(max(few - FEW * each, 0.0), each)


def _per_token(step: StepSeconds) -> StepSeconds:
    return StepSeconds(step.fixed, step.each / LENGTH)


def recorded(artefact: Artefact) -> Mapping[str, Settings]:
    """The configurations by hash, without extensions of the learning rates."""
    trainings = artefact.trainings(Context("paper", Path())).values()
    points = (point for own in trainings for sweep in own.sweeps for point in sweep.points())
    return {point.config.hash: point.config for point in points}


ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- paper costs: begin -->", "<!-- paper costs: end -->"
# The kinds of artefacts that train; probes and analytic ones measure at initialization.
KINDS = ("training", "guideline", "algorithm")

# Assumptions, not measurements: what an A100 sustains in TF32 on convolutions and matrix products (ResNet-50 at 800
# images/s is 20 TFLOP/s), and the time between the starts of two kernels.
SUSTAINED_FLOPS = 20e12
SECONDS_PER_CALL = 5e-6


@dataclass(frozen=True)
class Images:
    """A data set's training images."""

    count: int
    channels: int
    side: int
    classes: int


DATA: Mapping[str, Images] = {
    "cifar10": Images(50_000, 3, 32, 10),
    "cifar100": Images(50_000, 3, 32, 100),
    "svhn": Images(73_257, 3, 32, 10),
    "digits": Images(1_437, 1, 8, 10),
    "pets": Images(3_680, 3, 224, 37),
    "image_folder": Images(1_281_167, 3, 224, 1000),
}
# Tokens of an epoch: of SST-2 in its one language, of parallel text in each of the two. The papers train the narrower
# transformer on IWSLT and the wider on WMT.
SST2_SENTENCES, SST2_TOKENS_EACH, IWSLT_TOKENS, WMT_TOKENS = 67_349, 12.0, 4.1e6, 1.3e8
# Of BERT base, without embeddings.
BERT_PARAMETERS = 85e6
# Operations per parameter and token, forward and back.
PER_PARAMETER = 6


@dataclass(frozen=True)
class Cost:
    """Of some runs, or of an epoch.

    Attributes:
        flops: operations, counted.
        gpu_seconds: on one A100, an estimate.
        seconds: on this machine, from measured steps.
    """

    flops: float = 0.0
    gpu_seconds: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.gpu_seconds + other.gpu_seconds, self.seconds + other.seconds)

    def times(self, number: float) -> Cost:
        """So many of them."""
        return Cost(self.flops * number, self.gpu_seconds * number, self.seconds * number)

    def __str__(self) -> str:
        return " | ".join(_number(one) for one in (self.flops / 1e18, self.gpu_seconds / 3600, self.seconds / 3600))


def cost_of(configs: Mapping[str, Settings]) -> Cost:
    """Of runs by hash; a GPU's step takes as long as its operations or its kernels' starts, whichever is longer."""
    alike: Counter[tuple[Any, ...]] = Counter(_key(config) for config in configs.values())
    return sum((_run(key).times(count) for key, count in alike.items()), Cost())


def _run(key: tuple[Any, ...]) -> Cost:
    command, model, data, epochs, batch, image_count, side, vocabulary = key
    if command == "train":
        epoch = _images(model, data, batch, image_count, side)
    elif command == "train-text":
        epoch = _text(batch)
    else:
        epoch = _translation(model, batch, vocabulary)
    return epoch.times(epochs)


def _key(config: Settings) -> tuple[Any, ...]:
    """What decides a run's cost."""
    values = config.to_dict()
    data = values["data"]
    options = dict(re.findall(r"(\w+)=(\d+)", data))
    return (
        config.KIND,
        values["model"],
        data.partition("(")[0],
        values["epochs"],
        values.get("batch_size", values.get("batch_tokens")),
        int(options["train"]) if "train" in options else None,
        int(options["side"]) if "side" in options else None,
        values.get("vocabulary"),
    )


def _images(model: str, data: str, batch: int, count: int | None, side: int | None) -> Cost:
    images = DATA[data]
    shape = images.channels, side or images.side, images.classes
    number = count or images.count
    steps, cost = math.ceil(number / batch), step_cost(model, *shape)
    flops = cost.flops * number
    gpu = max(flops / SUSTAINED_FLOPS, steps * cost.calls * SECONDS_PER_CALL)
    return Cost(flops, gpu, steps * image_step(model, *shape).of(number / steps))


def _text(batch: int) -> Cost:
    steps = math.ceil(SST2_SENTENCES / batch)
    tokens = SST2_SENTENCES * SST2_TOKENS_EACH
    flops = PER_PARAMETER * BERT_PARAMETERS * tokens
    return Cost(flops, flops / SUSTAINED_FLOPS, steps * bert_step().of(tokens / steps))


def _translation(model: str, batch: int, vocabulary: int) -> Cost:
    """Attention has 4·w² parameters, twice in the decoder, and what lies between its layers 2·w·f."""
    # Sizes that the text leaves out are the defaults of the model.
    usual = {name: parameter.default for name, parameter in inspect.signature(transformer).parameters.items()}
    sizes = usual | {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", model)}
    width, layers = sizes["width"], sizes["layers"]
    rest = 2 * width * sizes["feed_forward"]
    encoder, decoder = layers * (4 * width**2 + rest), layers * (8 * width**2 + rest) + vocabulary * width
    tokens = WMT_TOKENS if width > 512 else IWSLT_TOKENS
    flops = PER_PARAMETER * (encoder + decoder) * tokens
    steps = math.ceil(tokens / batch)
    return Cost(flops, flops / SUSTAINED_FLOPS, steps * translation_step(model, vocabulary).of(tokens / steps))


def lines() -> Iterator[str]:
    """The table, a row per artefact that asks for runs, and below it those that could not be told."""
    yield "| artefact | runs | of which also above | EFLOP | GPU-hours, estimated | CPU-hours, measured |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    seen: dict[str, Settings] = {}
    for name, artefact in artefacts().items():
        if artefact.published.kind not in KINDS:
            continue
        configs = recorded(artefact)
        if configs:
            shared = len(configs.keys() & seen.keys())
            yield f"| `{name}` | {len(configs):,} | {shared:,} | {cost_of(configs)} |"
        seen |= configs
    yield f"| together, each run once | {len(seen):,} | | {cost_of(seen)} |"


def _number(value: float) -> str:
    """Format an estimate with three significant digits."""
    return f"{float(f'{value:.3g}'):,.12g}"


def main() -> int:
    """Write the table between its marks."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "scale.md"
    table = []
    for line in lines():
        sys.stderr.write(line + "\n")
        table.append(line)
    text = out.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    out.write_text("\n".join([before + BEGIN, *table, END]) + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
