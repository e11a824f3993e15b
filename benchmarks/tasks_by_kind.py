"""Small data sets for networks of ten kinds: the embedded digits, a text that Python ships, and fixed rules."""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from normless_lab.data import Augmentation, load_data

CONTEXT = 16
HELD_OUT = 352


class Part(NamedTuple):
    """Examples, along the first axis of every tensor."""

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]

    def at(self, rows: Tensor) -> Part:
        """Those of the rows."""
        return Part(tuple(x[rows] for x in self.inputs), tuple(y[rows] for y in self.targets))


class Task(NamedTuple):
    """Data, and the loss of a network's output on targets."""

    train: Part
    held_out: Part
    loss: Callable[..., Tensor]


def _divided(inputs: tuple[Tensor, ...], targets: tuple[Tensor, ...], loss: Callable[..., Tensor]) -> Task:
    """The last examples are held out."""
    rows = torch.arange(len(inputs[0]))
    whole = Part(inputs, targets)
    return Task(whole.at(rows[:-HELD_OUT]), whole.at(rows[-HELD_OUT:]), loss)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@cache
def _images() -> tuple[Tensor, Tensor]:
    """The embedded digits (N, 1, 8, 8), mean 0 and variance 1 over all, and their classes."""
    data = load_data("digits")
    parts = [
        next(data.train_batches(data.train_size, seed=0, epoch=0, augmentation=Augmentation())),
        next(data.test_batches(data.test_size)),
    ]
    images, labels = (torch.cat(values) for values in zip(*parts, strict=True))
    return (images - images.mean()) / images.std(), labels


def digits() -> Task:
    """Images to classes."""
    images, labels = _images()
    return _divided((images,), (labels,), F.cross_entropy)


def halves() -> Task:
    """Left halves of images and right halves, as numbers: which belong together, within a batch."""
    images, _ = _images()
    return _divided((images[..., :4], images[..., 4:].flatten(1)), (), _contrast)


def _contrast(logits: Tensor) -> Tensor:
    pairs = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.t(), pairs)) / 2


def likeness() -> Task:
    """Images to unit vectors, close where the classes are the same: the supervised contrastive loss."""
    images, labels = _images()
    return _divided((images,), (labels,), _supervised_contrast)


def _supervised_contrast(embeddings: Tensor, labels: Tensor) -> Tensor:
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    logits = (embeddings @ embeddings.t() / 0.2).masked_fill(itself, -1e9)
    same = ((labels[:, None] == labels[None]) & ~itself).float()
    return -((logits.log_softmax(1) * same).sum(1) / same.sum(1).clamp(min=1)).mean()


def _placed() -> tuple[Tensor, Tensor, Tensor]:
    """Digits at places of noisy images of 16×16, the classes, and the places (row, column) of their corners."""
    images, labels = _images()
    generator = _generator()
    places = torch.randint(0, 9, (len(images), 2), generator=generator)
    canvas = 0.3 * torch.randn(len(images), 1, 16, 16, generator=generator)
    for image, (row, column), whole in zip(images, places.tolist(), canvas, strict=True):
        whole[:, row : row + 8, column : column + 8] += image - images.min()
    return canvas, labels, places


def boxes() -> Task:
    """The class and the place of the digit in an image."""
    canvas, labels, places = _placed()
    return _divided((canvas,), (labels, places / 8), _box_loss)


def _box_loss(output: tuple[Tensor, Tensor], labels: Tensor, places: Tensor) -> Tensor:
    return F.cross_entropy(output[0], labels) + F.smooth_l1_loss(output[1], places, beta=0.1)


def cells() -> Task:
    """At each of 4×4 cells the class of the digit whose centre is there, and the centre's place within the cell."""
    canvas, labels, places = _placed()
    cell, rows = places // 4 + 1, torch.arange(len(labels))
    cell = cell.clamp(max=3)
    classes = torch.full((len(labels), 4, 4), 10)
    classes[rows, cell[:, 0], cell[:, 1]] = labels
    return _divided((canvas,), (classes, cell, places / 4 + 1 - cell), _cell_loss)


def _cell_loss(output: tuple[Tensor, Tensor], classes: Tensor, cell: Tensor, offset: Tensor) -> Tensor:
    boxes = output[1][torch.arange(len(cell)), :, cell[:, 0], cell[:, 1]]
    return 4 * F.cross_entropy(output[0], classes) + F.smooth_l1_loss(boxes, offset, beta=0.1)


def turned() -> Task:
    """Class, parity and quarter turns of images."""
    images, labels = _images()
    turns = torch.randint(0, 4, (len(images),), generator=_generator())
    turned_images = torch.stack([image.rot90(int(turn), (1, 2)) for image, turn in zip(images, turns, strict=True)])
    return _divided((turned_images,), (labels, labels % 2, turns), _sum_of_entropies)


def _sum_of_entropies(outputs: tuple[Tensor, ...], *targets: Tensor) -> Tensor:
    return torch.stack([F.cross_entropy(*pair) for pair in zip(outputs, targets, strict=True)]).sum()


def masks() -> Task:
    """Noisy images; which pixels belong to the digit."""
    images, _ = _images()
    return _divided((_noisy(images, 1.0),), ((images[:, 0] > 0).long(),), F.cross_entropy)


def denoising() -> Task:
    """Noisy images to clean ones."""
    images, _ = _images()
    return _divided((_noisy(images, 0.7),), (images,), F.mse_loss)


def noise_levels() -> Task:
    """Mixtures of image and noise, and the share of the noise: the noise."""
    images, _ = _images()
    generator = _generator()
    level = 0.1 + 0.8 * torch.rand(len(images), 1, generator=generator)
    noise = torch.randn(images.shape, generator=generator)
    share = level[..., None, None]
    return _divided(((1 - share**2).sqrt() * images + share * noise, level), (noise,), F.mse_loss)


def _noisy(images: Tensor, deviation: float) -> Tensor:
    return images + deviation * torch.randn(images.shape, generator=_generator())


def text() -> Task:
    """Characters of Python's help texts, of 96 kinds: the next one. What is held out comes last in the text."""
    written = "\n".join(topic for _, topic in sorted(pydoc_data.topics.topics.items()))
    numbers = torch.tensor([ord(letter) - 32 if 32 <= ord(letter) < 127 else 95 for letter in written])
    windows = numbers.unfold(0, CONTEXT + 1, CONTEXT)
    return _divided((windows[:, :-1],), (windows[:, 1:],), _token_loss)


def _token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def samples(examples: int = 2048, length: int = 25) -> Task:
    """Sums of two sines and noise, in 32 levels: the next level."""
    generator = _generator()
    frequency, phase = (torch.rand(examples, 2, 1, generator=generator) for _ in range(2))
    waves = torch.sin((0.1 + 0.7 * frequency) * torch.arange(length) + 6.28 * phase).mean(1)
    waves = waves + 0.02 * torch.randn(waves.shape, generator=generator)
    levels = ((waves.clamp(-1, 0.999) + 1) * 16).long()
    return _divided((levels[:, :-1],), (levels[:, 1:],), _token_loss)


def tones(examples: int = 2048, length: int = 16) -> Task:
    """Frames of 8 noisy features, each echoing into the next: the tone, of 8, that began last."""
    generator = _generator()
    changes = torch.rand(examples, length, generator=generator) < 0.3
    drawn = torch.randint(0, 8, (examples, length), generator=generator)
    changes[:, 0] = True
    begun = torch.where(changes, torch.arange(length), 0).cummax(1).values
    tone = drawn.gather(1, begun)
    frames = torch.randn(8, 8, generator=generator)[tone]
    frames = frames + 0.7 * frames.roll(1, 1) + torch.randn(frames.shape, generator=generator)
    return _divided((frames,), (tone,), _token_loss)


def marked_sums(examples: int = 2048, length: int = 24) -> Task:
    """The sum of the marked values of a sequence."""
    generator = _generator()
    values = torch.randn(examples, length, generator=generator)
    marks = (torch.rand(examples, length, generator=generator) < 0.15).float()
    sums = _standardized((values * marks).sum(1, keepdim=True))
    return _divided((torch.stack([values, marks], 1),), (sums,), F.mse_loss)


def motion(frames: int = 3) -> Task:
    """Digits that move through images of 12×12: in which of four directions."""
    images, _ = _images()
    generator = _generator()
    directions = torch.randint(0, 4, (len(images),), generator=generator)
    clips = 0.3 * torch.randn(len(images), 1, frames, 12, 12, generator=generator)
    for image, direction, clip in zip(images, directions.tolist(), clips, strict=True):
        for time in range(frames):
            row, column = [(1 + time, 2), (3 - time, 2), (2, 1 + time), (2, 3 - time)][direction]
            clip[:, time, row : row + 8, column : column + 8] += image - images.min()
    return _divided((clips,), (directions,), F.cross_entropy)


def _balls(counts: Tensor, generator: torch.Generator) -> Tensor:
    """Which voxels of 8×8×8 belong to balls of radius 1.5 at random places, (N, 8, 8, 8)."""
    grid = torch.stack(torch.meshgrid(*(torch.arange(8.0),) * 3, indexing="ij"))
    centres = 1 + 6 * torch.rand(len(counts), 4, 3, generator=generator)
    inside = (grid - centres[..., None, None, None]).square().sum(2) < 1.5**2
    return (inside & (torch.arange(4) < counts[:, None])[..., None, None, None]).any(1)


def ball_counts(examples: int = 1536) -> Task:
    """Volumes with 1 to 4 balls: how many."""
    generator = _generator()
    counts = torch.randint(1, 5, (examples,), generator=generator)
    volumes = _balls(counts, generator).float()[:, None]
    volumes = volumes + 0.2 * torch.randn(volumes.shape, generator=generator)
    return _divided((volumes,), (counts - 1,), F.cross_entropy)


def ball_masks(examples: int = 1536) -> Task:
    """Noisy volumes with balls: which voxels belong to one."""
    generator = _generator()
    inside = _balls(torch.randint(1, 5, (examples,), generator=generator), generator)
    volumes = inside.float()[:, None] + 0.5 * torch.randn(examples, 1, 8, 8, 8, generator=generator)
    return _divided((volumes,), (inside.long(),), F.cross_entropy)


def _graphs(examples: int = 2048, nodes: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """Features of nodes (N, 12, 4), symmetric adjacency without loops (N, 12, 12), what a rule gives each node."""
    generator = _generator()
    features = torch.randn(examples, nodes, 4, generator=generator)
    upper = (torch.rand(examples, nodes, nodes, generator=generator) < 0.25).float().triu(1)
    adjacency = upper + upper.transpose(1, 2)
    first, second = (torch.randn(4, width, generator=generator) for width in (4, 1))
    near = torch.tanh(features @ first + adjacency @ features)
    return features, adjacency, torch.tanh(near + adjacency @ near / 2) @ second


def nodes() -> Task:
    """A value for each node, from its neighbours and theirs."""
    features, adjacency, values = _graphs()
    return _divided((features, adjacency), (_standardized(values),), F.mse_loss)


def graphs() -> Task:
    """A value for each graph."""
    features, adjacency, values = _graphs()
    return _divided((features, adjacency), (_standardized(values.mean(1)),), F.mse_loss)


def _rule(outputs: int, examples: int = 4096, features: int = 12) -> tuple[Tensor, Tensor]:
    """Rows of a table and what a fixed perceptron with a hidden layer gives them."""
    generator = _generator()
    rows = torch.randn(examples, features, generator=generator)
    first = torch.randn(features, 16, generator=generator) / features**0.5
    second = torch.randn(16, outputs, generator=generator)
    return rows, _standardized(torch.sin(2 * rows @ first) @ second)


def rows() -> Task:
    """Rows of a table to a number."""
    table, values = _rule(1)
    return _divided((table,), (values,), F.mse_loss)


def returns() -> Task:
    """States; the return of one of four actions."""
    states, values = _rule(4)
    actions = torch.randint(0, 4, (len(states), 1), generator=_generator())
    return _divided((states,), (actions, values.gather(1, actions)), _chosen_loss)


def _chosen_loss(values: Tensor, actions: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(values.gather(1, actions), targets)


def reconstruction() -> Task:
    """Images and the noise of the latent variables: a tenth of the divergence added to the error."""
    images, _ = _images()
    flat = images.flatten(1)
    return _divided((flat, torch.randn(len(flat), 8, generator=_generator())), (flat,), _variational)


def _variational(output: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
    made, mean, log_variance = output
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
    return F.mse_loss(made, targets) + 0.1 * divergence / targets.shape[1] * 8


def _standardized(values: Any) -> Tensor:
    return (values - values.mean(0)) / values.std(0)
