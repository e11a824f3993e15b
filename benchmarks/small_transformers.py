"""A kind of run: one small transformer under one scheme, on the embedded digits or on text by characters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless import convert, param_groups, residual_map
from normless.models._transformer import AttentionBlock, FeedForwardBlock, Placement, sinusoids
from normless.probes import has_diverged
from normless.residual import ResidualMap
from normless_lab.data import Augmentation, load_data
from normless_lab.sweeps import Kind
from normless_lab.train import EpochRow, Settings, rate_multiplier
from normless_lab.train._result import Report
from normless_lab.train._schedules import set_rate
from normless_papers.text.text_sets import ParallelText

# Side of a patch of the 8×8 digits, and characters that the language model reads at once.
PATCH, CONTEXT = 2, 32
VALIDATION = 287
CLIP = 1.0


@dataclass(frozen=True)
class SmallTransformerConfig(Settings):
    """A run.

    Args:
        task: `digits`, patches of an image to its class, or `text`, the characters so far to the next one.
        scheme: the edits made before training.
        norm: where the network has its norms before that.
        steps: of AdamW, with a linear warm-up over a tenth of them and a linear fall to 0.
        rate: peak learning rate, before the groups' multipliers.
    """

    KIND: ClassVar[str] = "small_transformers:SMALL_TRANSFORMERS"

    task: Literal["digits", "text"]
    scheme: str
    norm: Placement = "pre"
    layers: int = 12
    width: int = 32
    heads: int = 2
    steps: int = 200
    batch_size: int = 32
    weight_decay: float = 0.01
    epochs: int = 1
    rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True)
class SmallTransformerResult(Report):
    """How a run ended; losses are means in nats, of images or of characters, and accuracies shares of them."""

    outcome: Any
    training_loss: float
    validation_loss: float
    test_loss: float
    test_accuracy: float
    steps: int
    parameters: int
    epochs: tuple[EpochRow, ...] = ()


class Part(NamedTuple):
    """Examples: patches (N, 16, 4) and classes (N,), or characters (N, T) and those that follow them (N, T)."""

    inputs: Tensor
    targets: Tensor


class Task(NamedTuple):
    """The data of a task, and its number of classes or of different characters."""

    train: Part
    validation: Part
    test: Part
    classes: int


class SmallTransformer(nn.Module):
    """A layer that embeds, sinusoids as positions, layers of attention and feed-forward, and a linear classifier.

    Without `causal` it is a ViT whose classifier reads the mean over patches; with it a GPT with logits at each
    character. A pre-norm network has a norm before the classifier.

    Shapes: (B, T, features) or characters (B, T) to (B, classes), or (B, T, classes) where causal.
    """

    def __init__(self, embedding: nn.Module, classes: int, config: SmallTransformerConfig) -> None:
        super().__init__()
        width, norm = config.width, config.norm
        self.causal = config.task == "text"
        self.embedding = embedding
        layers: list[nn.Module] = []
        for _ in range(config.layers):
            layers.append(AttentionBlock(width, config.heads, norm, dropout=0.0))
            layers.append(FeedForwardBlock(width, 2 * width, norm, dropout=0.0))
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width) if norm == "pre" else nn.Identity()
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        h = self.embedding(x)
        h = h + sinusoids(0, h.shape[1], h.shape[2])
        for layer in self.layers:
            h = layer(h, causal=self.causal)[0] if isinstance(layer, AttentionBlock) else layer(h)
        h = self.norm(h)
        logits: Tensor = self.classifier(h if self.causal else h.mean(1))
        return logits


@cache
def task_of(name: str) -> Task:
    """The data of a task by its name."""
    return _digits() if name == "digits" else _text()


def _digits() -> Task:
    """The embedded digits; the last `VALIDATION` of its training set, in one random order, are for validation."""
    data = load_data("digits")
    whole = data.train_batches(data.train_size, seed=0, epoch=0, augmentation=Augmentation())
    images, labels = next(whole)
    train = Part(_patches(images), labels)
    validation = Part(*(values[-VALIDATION:] for values in train))
    images, labels = next(data.test_batches(data.test_size))
    test = Part(_patches(images), labels)
    return Task(Part(*(values[:-VALIDATION] for values in train)), validation, test, data.classes)


def _patches(images: Tensor) -> Tensor:
    """Images (N, 1, H, W) to patches (N, H·W / 4, 4)."""
    return F.unfold(images, PATCH, stride=PATCH).transpose(1, 2)


def _text() -> Task:
    """The German sentences of the embedded grammar, line by line, as characters."""
    data = load_data("grammar", kind=ParallelText)
    texts = ["\n".join(part.target) for part in (data.train, data.validation, data.test)]
    number = {character: index for index, character in enumerate(sorted(set("".join(texts))))}
    parts = []
    for text in texts:
        characters = torch.tensor([number[character] for character in text])
        windows = characters.unfold(0, CONTEXT + 1, CONTEXT)
        parts.append(Part(windows[:, :-1], windows[:, 1:]))
    return Task(*parts, len(number))


def build(config: SmallTransformerConfig) -> SmallTransformer:
    """The network before its conversion; seeds torch's generator."""
    torch.manual_seed(config.seed)
    classes, width = task_of(config.task).classes, config.width
    embedding = nn.Linear(PATCH**2, width) if config.task == "digits" else nn.Embedding(classes, width)
    return SmallTransformer(embedding, classes, config)


@cache
def maps_of(config: SmallTransformerConfig) -> tuple[ResidualMap, ResidualMap]:
    """The residual maps before and after the conversion, which are the same at every rate and seed."""
    inputs, network = task_of(config.task).train.inputs[: config.batch_size], build(config)
    before = residual_map(network, inputs)
    return before, residual_map(convert(network, config.scheme, inputs, residual_map=before), inputs)


def carry_out(config: SmallTransformerConfig, directory: Path) -> SmallTransformerResult:
    """Train and test; the batches depend on task and seed alone, and are the same under every scheme."""
    torch.set_num_threads(1)
    task = task_of(config.task)
    generator = torch.Generator().manual_seed(config.seed)
    chosen = torch.randint(len(task.train.inputs), (config.steps, config.batch_size), generator=generator)
    before, after = maps_of(replace(config, rate=1.0, seed=0))
    network = convert(build(config), config.scheme, task.train.inputs[chosen[0]], residual_map=before)
    groups = param_groups(network, lr=config.rate, weight_decay=config.weight_decay, residual_map=after)
    optimizer = torch.optim.AdamW(groups, lr=config.rate, fused=True)
    loss, diverged = float("nan"), False
    for done, rows in enumerate(chosen):
        set_rate(optimizer, config.rate * rate_multiplier("linear", done, config.steps, warmup=config.steps // 10))
        optimizer.zero_grad()
        mean = _losses(network, task.train.inputs[rows], task.train.targets[rows])[0].mean()
        mean.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimizer.step()
        loss = float(mean.detach())
        diverged = has_diverged(loss)
        if diverged:
            break
    network.eval()
    with torch.no_grad():
        validation, test = (_losses(network, *part) for part in (task.validation, task.test))
    return SmallTransformerResult(
        outcome="diverged" if diverged else "trained",
        training_loss=loss,
        validation_loss=float(validation[0].mean()),
        test_loss=float(test[0].mean()),
        test_accuracy=float(test[1].double().mean()),
        steps=done + 1,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
    )


def _losses(network: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The cross entropy of every prediction, and whether it is right."""
    logits = network(inputs).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), reduction="none"), logits.argmax(-1) == targets.flatten()


SMALL_TRANSFORMERS = Kind(
    "small_transformers:SmallTransformerConfig",
    "small_transformers:carry_out",
    "small_transformers:SmallTransformerResult",
)
