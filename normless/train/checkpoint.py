"""The state of a run after its last finished epoch, on which the next epochs depend."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from normless.train.directory import replaced


def save_checkpoint(fabric: Fabric, path: Path, network: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    """Write weights, buffers, optimizer state and the number of finished epochs; called by every process.

    No generator's state is saved: each epoch seeds its generators from (seed, epoch).
    """
    state: dict[str, Any] = {"network": network, "optimizer": optimizer, "epoch": epoch}
    with replaced(path) if fabric.is_global_zero else nullcontext(path) as part:
        fabric.save(part, state)


def load_checkpoint(fabric: Fabric, path: Path, network: nn.Module, optimizer: Optimizer) -> int:
    """Restore what `save_checkpoint` wrote and return the number of finished epochs: 0 where there is no file."""
    if not path.exists():
        return 0
    state: dict[str, Any] = {"network": network, "optimizer": optimizer, "epoch": 0}
    fabric.load(path, state, weights_only=True)
    return int(state["epoch"])


def load_weights(path: Path) -> dict[str, Tensor]:
    """Weights and buffers in a checkpoint, on the CPU."""
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)["network"]
    return weights


def restored(network: nn.Module, path: Path) -> nn.Module:
    """A network of the same structure with the weights of a checkpoint and their type, in evaluation mode."""
    weights = load_weights(path)
    kind = next(weights[name].dtype for name, _ in network.named_parameters())
    network.to(kind).load_state_dict(weights)
    return network.eval()
