"""Small data with structure: tables and digits of scikit-learn, and generators of images, sequences and graphs."""

import functools

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor


def standardized(values: Tensor) -> Tensor:
    """Return columns of mean zero and variance one; constant columns become zero."""
    return (values - values.mean(0)) / values.std(0).clamp(min=1e-6)


@functools.cache
def _table(name: str) -> tuple[Tensor, Tensor]:
    loaded = getattr(datasets, f"load_{name}")()
    order = np.random.default_rng(0).permutation(len(loaded.data))
    return torch.tensor(loaded.data[order], dtype=torch.float32), torch.tensor(loaded.target[order])


def table(name: str, raw: bool = False) -> tuple[Tensor, Tensor]:
    """Return the shuffled features, raw or standardized, and targets of a table of scikit-learn."""
    features, targets = _table(name)
    return features.clone() if raw else standardized(features), targets.clone()


def tumors(raw: bool = False) -> tuple[Tensor, Tensor]:
    """Return measurements of tumors, and whether these are benign, as numbers."""
    features, targets = table("breast_cancer", raw)
    return features, targets.float()


def digits(count: int = 512, start: int = 0) -> tuple[Tensor, Tensor]:
    """Return images of handwritten digits, (count, 1, 8, 8) in [0, 1], and their labels."""
    features, labels = _table("digits")
    chosen = slice(start, start + count)
    return features[chosen].clone().view(-1, 1, 8, 8) / 16, labels[chosen].clone().long()


def circles(count: int = 400) -> tuple[Tensor, Tensor]:
    """Return points of an inner disk and an outer ring, and their labels."""
    angle = 2 * torch.pi * torch.rand(count)
    labels = (torch.arange(count) % 2).long()
    radius = torch.where(labels == 1, 2.0, 0.7) + 0.15 * torch.randn(count)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels


def smooth_function(count: int = 256, dimensions: int = 6) -> tuple[Tensor, Tensor]:
    """Return standard normal features and a smooth nonlinear target (count, 1) of mean zero and variance one."""
    features = torch.randn(count, dimensions)
    target = features[:, 0] * features[:, 1] + torch.sin(2 * features[:, 2]) + features[:, 3]
    return features, standardized(target[:, None])


def scenes(count: int = 32, size: int = 16) -> tuple[Tensor, Tensor]:
    """Return noisy images (count, 1, size, size) with one bright disk each, and the masks of the disks."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    centers = torch.randint(4, size - 4, (count, 2))
    radii = torch.randint(2, 5, (count,))
    distances = (rows - centers[:, 0, None, None]) ** 2 + (columns - centers[:, 1, None, None]) ** 2
    masks = (distances <= radii[:, None, None] ** 2).long()
    images = masks.float() + 0.3 * torch.randn(count, size, size)
    return images[:, None], masks


def first_of_two(count: int = 256, length: int = 12, vocabulary: int = 12) -> tuple[Tensor, Tensor]:
    """Return token sequences that hold tokens 1 and 2 once each, and whether 1 comes before 2."""
    tokens = torch.randint(3, vocabulary, (count, length))
    places = torch.stack([torch.randperm(length)[:2] for _ in range(count)])
    tokens[torch.arange(count), places[:, 0]] = 1
    tokens[torch.arange(count), places[:, 1]] = 2
    return tokens, (places[:, 0] < places[:, 1]).long()


def lookup(count: int = 256, pairs: int = 6, values: int = 8) -> tuple[Tensor, Tensor]:
    """Return key-value lists with a queried key at the end, and the value that belongs to the key.

    A sequence is (k₁v₁)(k₂v₂)…(k_q): every token is key·values + value, and the last one is the key alone.
    """
    keys = torch.stack([torch.randperm(pairs) for _ in range(count)])
    held = torch.randint(0, values, (count, pairs))
    asked = torch.randint(0, pairs, (count,))
    tokens = torch.cat([keys * values + held, (pairs * values + asked)[:, None]], 1)
    answers = (held * (keys == asked[:, None])).sum(1)
    return tokens, answers


def language(count: int = 32, length: int = 24, vocabulary: int = 16) -> tuple[Tensor, Tensor]:
    """Return sequences of a sparse random Markov chain: tokens at positions 0…T−1 and at positions 1…T."""
    successors = torch.randint(0, vocabulary, (vocabulary, 2))
    tokens = torch.randint(0, vocabulary, (count, length + 1))
    for position in range(length):
        choice = (torch.rand(count) < 0.2).long()
        tokens[:, position + 1] = successors[tokens[:, position], choice]
    return tokens[:, :-1], tokens[:, 1:]


def waves(count: int = 64, length: int = 30) -> tuple[Tensor, Tensor]:
    """Return noisy sine waves (count, length, 1) of a slow or a fast frequency, and which of both it is."""
    labels = (torch.arange(count) % 2).long()
    frequency = torch.where(labels == 1, 0.9, 0.4)[:, None]
    phase = 2 * torch.pi * torch.rand(count, 1)
    series = torch.sin(frequency * torch.arange(length) + phase) + 0.1 * torch.randn(count, length)
    return series[..., None], labels


def communities(nodes: int = 120, groups: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Return node features, a symmetric adjacency with self loops, and the community of every node."""
    labels = torch.arange(nodes) % groups
    same = labels[:, None] == labels[None]
    edges = (torch.rand(nodes, nodes) < torch.where(same, 0.2, 0.02)).float().triu(1)
    features = 0.7 * torch.nn.functional.one_hot(labels, 8).float() + torch.randn(nodes, 8)
    return features, edges + edges.T + torch.eye(nodes), labels


def pairs(count: int = 64, dimensions: int = 12) -> tuple[Tensor, Tensor]:
    """Return two noisy views of the same items, through two different random maps."""
    items = torch.randn(count, 6)
    first = items @ torch.randn(6, dimensions) + 0.1 * torch.randn(count, dimensions)
    second = items @ torch.randn(6, dimensions) + 0.1 * torch.randn(count, dimensions)
    return first, second


def centers(masks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the centers of disks in pixels, (count, 2), and their areas."""
    rows = torch.arange(16.0)[:, None]
    area = masks.sum((1, 2)).float()
    return torch.stack([(masks * rows).sum((1, 2)) / area, (masks * rows.T).sum((1, 2)) / area], 1), area


def padded(padding: int, inverted: bool = False) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return sequences of `first_of_two` with padding and its mask, True at padding unless it is inverted."""
    tokens, labels = first_of_two(128, length=8)
    tokens = torch.cat([tokens, torch.zeros(128, padding, dtype=torch.long)], 1)
    return (tokens, tokens != 0 if inverted else tokens == 0), labels
