"""Train torchvision's ResNet-18 on digits with differential privacy: without normalization, and with group norm.

Batch normalization mixes the examples of a batch, so it cannot be trained privately. Opacus replaces it by group
normalization; normless removes it (SkipInit). Both networks are trained by the same DP-SGD to the same ε.

    pip install "normless[lab,private,zoo]"
    python examples/private_digits.py --epsilon 8 --epochs 5
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnet18

import normless as nl
from normless.integrations import prepare
from normless_lab.data import Batch, load_data

METHODS: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "SkipInit (normless)": lambda model, images: nl.convert(model, "skipinit", images),
    "GroupNorm (Opacus)": lambda model, images: ModuleValidator.fix(model),
}


@dataclass(frozen=True)
class Settings:
    """The settings of both trainings; δ is the allowed probability that the guarantee ε fails."""

    epsilon: float = 8.0
    delta: float = 1e-4
    epochs: int = 5
    batch_size: int = 256
    clip: float = 1.0
    rate: float = 0.5
    momentum: float = 0.0
    seed: int = 0
    physical_batch: int = 32


@dataclass(frozen=True)
class Result:
    """The result of a training; `epsilon` was spent, and `noise` is the noise's deviation in units of the clip."""

    accuracy: float
    epsilon: float
    noise: float
    seconds_per_step: float
    model: nn.Module


def private_digits(examples: int | None = None) -> tuple[Batch, Batch]:
    """Return training and test digits as 3×32×32, with pixels mapped to [-1, 1] independently of the data."""
    data = load_data("digits").subset(train=examples)
    (train,) = data.train_batches(data.train_size, seed=0, epoch=0, augmentation=data.default_augmentation)
    (test,) = data.test_batches(data.test_size)

    def as_photographs(batch: Batch) -> Batch:
        # `load_data` normalizes by the training set's mean and deviation, which are not private.
        pixels = 2 * (batch.inputs * data.std[0] + data.mean[0]) - 1
        return Batch(F.interpolate(pixels.expand(-1, 3, -1, -1), scale_factor=4), batch.targets)

    return as_photographs(train), as_photographs(test)


def train(method: str, train_set: Batch, test_set: Batch, settings: Settings) -> Result:
    """Train ResNet-18 by DP-SGD, normalized or not by one of `METHODS`."""
    torch.manual_seed(settings.seed)
    example = torch.zeros(2, *train_set.inputs.shape[1:])
    net = prepare(METHODS[method](resnet18(num_classes=10), example), example)
    engine = PrivacyEngine()
    net, optimizer, loader = engine.make_private_with_epsilon(
        module=net.train(),
        optimizer=torch.optim.SGD(net.parameters(), lr=settings.rate, momentum=settings.momentum),
        data_loader=DataLoader(TensorDataset(*train_set), batch_size=settings.batch_size, shuffle=True),
        target_epsilon=settings.epsilon,
        target_delta=settings.delta,
        epochs=settings.epochs,
        max_grad_norm=settings.clip,
    )
    start = perf_counter()
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=settings.physical_batch, optimizer=optimizer
    ) as parts:
        for _ in range(settings.epochs):
            for images, labels in parts:
                optimizer.zero_grad()
                F.cross_entropy(net(images), labels).backward()
                optimizer.step()
    seconds = perf_counter() - start
    net.eval()
    with torch.no_grad():
        accuracy = float((net(test_set.inputs).argmax(1) == test_set.targets).float().mean())
    return Result(
        accuracy,
        engine.get_epsilon(settings.delta),
        optimizer.noise_multiplier,
        seconds / (settings.epochs * len(loader)),
        net._module,
    )


def main() -> None:
    """Train both networks and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = Settings()
    for name, value in vars(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help=f"default {value}")
    parser.add_argument("--examples", type=int, help="train on fewer than 1437")
    options = vars(parser.parse_args())
    train_set, test_set = private_digits(options.pop("examples"))
    settings = Settings(**options)
    print(f"{settings}, {len(train_set.targets)} examples")
    print("| network | ε | test accuracy | seconds per step | largest multiplier |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for method in METHODS:
        result = train(method, train_set, test_set, settings)
        cells = (f"{result.epsilon:.2f}", f"{result.accuracy:.1%}", f"{result.seconds_per_step:.1f}")
        multipliers = [value for name, value in result.model.state_dict().items() if name.endswith("multiplier")]
        largest = f"{torch.cat(multipliers).abs().max():.3f}" if multipliers else "–"
        print("|", " | ".join([method, *cells, largest]), "|", flush=True)


if __name__ == "__main__":
    # Opacus' random numbers are not cryptographic, which is sufficient for an experiment but not for a release.
    warnings.filterwarnings("ignore", message="Secure RNG turned off")
    # The first layer reads images, which need no gradient.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    main()
