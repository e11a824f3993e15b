"""Time and memory of a training step and time of inference under each scheme, relative to the bare network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.affine import fuse_for_inference
from normless.conversion import convert
from normless.models import resnet_cifar, wide_resnet
from normless_lab.bench.by_hand import Bare, HandWrittenFixup
from normless_lab.bench.timing import ratio_table, seconds_in_turns, timer_of
from normless_lab.train.memory import activation_bytes

REFERENCE = "bare"
OFFICIAL = "hand-written fixup"
ORDER = torch.channels_last


@dataclass(frozen=True)
class ImageBench:
    """A CIFAR ResNet and a batch of random images; variants alternate for `rounds` rounds.

    `image_size` is the height and width of an image in pixels.
    """

    depth: int = 110
    batch_size: int = 128
    image_size: int = 32
    rounds: int = 5

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return random images and classes."""
        images = torch.randn(self.batch_size, 3, self.image_size, self.image_size)
        return images, torch.randint(10, (self.batch_size,))


@dataclass(frozen=True)
class StepBench(ImageBench):
    """The `schemes` to compare with the bare network; a CIFAR ResNet is also compared with hand-written Fixup.

    With a `width` the network is a Wide-ResNet. `device` is the name of a torch device. Weights and images are in
    channels-last order, as in `normless train`.
    """

    batch_size: int = 64
    rounds: int = 10
    width: int = 0
    device: str = "cpu"
    schemes: tuple[str, ...] = ("none", "skipinit(alpha=1)", "fixup", "batch_norm")

    @property
    def network(self) -> str:
        """The name of the network."""
        return f"WRN-{self.depth}-{self.width}" if self.width else f"ResNet-{self.depth}"

    def networks(self) -> dict[str, nn.Module]:
        """Return the bare network, and a network with the same weights for each scheme."""
        torch.manual_seed(0)
        network = wide_resnet(self.depth, self.width) if self.width else resnet_cifar(self.depth)
        networks: dict[str, nn.Module] = {REFERENCE: Bare(network)}
        networks |= {scheme: convert(network, scheme) for scheme in self.schemes}
        if not self.width:
            networks[OFFICIAL] = HandWrittenFixup(network)
        return {name: network.to(self.device).to(memory_format=ORDER) for name, network in networks.items()}

    def placed_batch(self) -> tuple[Tensor, Tensor]:
        """Return random images and classes on the device."""
        images, labels = self.batch()
        return images.to(self.device, memory_format=ORDER), labels.to(self.device)


def measure_step(bench: StepBench) -> pd.DataFrame:
    """Time a training step of every network: a row each, see `ratio_table`; ratios are to the bare network."""
    batch = bench.placed_batch()
    steps = {name: training_step(opened(network), *batch) for name, network in bench.networks().items()}
    return _to_bare(seconds_in_turns(steps, bench.rounds, timer_of(batch[0].device)))


def opened(network: nn.Module) -> nn.Module:
    """Return the network with random weights for those that are zero, whose gradients would be denormal numbers."""
    for parameter in network.parameters():
        if parameter.dim() > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.01)
    return network


def measure_inference(bench: StepBench) -> pd.DataFrame:
    """Time a forward pass in eval mode of every network, as it is and fused; see `measure_step`."""
    images, _ = bench.placed_batch()
    networks = bench.networks()
    for scheme in bench.schemes:
        network = networks[scheme].eval()
        networks[f"{scheme}, fused"] = fuse_for_inference(network, images, allow_partial=True)
    passes = {name: _inference(network.eval(), images) for name, network in networks.items()}
    return _to_bare(seconds_in_turns(passes, bench.rounds, timer_of(images.device)))


def measure_memory(bench: StepBench) -> pd.DataFrame:
    """Measure the MiB that every network keeps for its backward pass: a row each, with the ratio to the bare network.

    On the CPU these are the tensors that autograd saves, see `activation_bytes`; on CUDA the peak of the memory that
    torch allocates in a step.
    """
    images, labels = bench.placed_batch()
    count = partial(_peak_on_cuda, labels=labels) if images.is_cuda else activation_bytes
    kept = pd.Series({name: count(network, images) / 2**20 for name, network in bench.networks().items()})
    ratios = (kept / kept[REFERENCE]).to_numpy()
    return pd.DataFrame({"network": kept.index, "mebibytes": kept.to_numpy(), "ratio": ratios})


def training_step(network: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], object]:
    """Return a function that executes a step of SGD with momentum on a batch; it does not wait for a GPU."""
    step, _ = step_on_batches(network)
    return partial(step, (images, labels))


def step_on_batches(
    network: nn.Module, autocast: torch.dtype | None = None
) -> tuple[Callable[[Sequence[Tensor]], Tensor], torch.optim.Optimizer]:
    """Return a function that executes a step on images and labels and returns the loss (nats), and the optimizer.

    With `autocast` the forward pass computes in that format. On CUDA the optimizer is fused.
    """
    parameters = [*network.parameters()]
    device = parameters[0].device.type
    # The learning rate does not change the arithmetic; a small one keeps every network near its start.
    optimizer = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, fused=device == "cuda")

    def step(batch: Sequence[Tensor]) -> Tensor:
        images, labels = batch
        optimizer.zero_grad()
        mixed: AbstractContextManager[object] = (
            nullcontext() if autocast is None else torch.autocast(device, autocast)
        )
        with mixed:
            loss = F.cross_entropy(network(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step, optimizer


def _inference(network: nn.Module, images: Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def run() -> None:
        network(images)

    return run


def _peak_on_cuda(network: nn.Module, images: Tensor, labels: Tensor) -> int:
    step = training_step(network, images, labels)
    step()
    before = torch.cuda.memory_allocated(images.device)
    torch.cuda.reset_peak_memory_stats(images.device)
    step()
    return torch.cuda.max_memory_allocated(images.device) - before


def _to_bare(seconds: pd.DataFrame) -> pd.DataFrame:
    table = ratio_table("network", seconds, seconds.div(seconds[REFERENCE], axis=0))
    # Other work on the machine disturbs the fastest step least.
    return table.assign(of_fastest=(seconds.min() / seconds[REFERENCE].min()).to_numpy())
