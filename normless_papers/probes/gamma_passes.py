"""The passes that tell what γ does: those of one network on one batch, with γ at other sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normless.arguments import arguments_of
from normless.probes import Loss, compute_logits, preserve_state
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map


@dataclass(frozen=True)
class GammaPasses:
    """Passes through one network on one batch, that give the logits and the gradients of γ.

    Attributes:
        gammas: the trained γ that are not zero, by the paths of their norms in execution order.
        roles: of the norms.
    """

    model: nn.Module
    inputs: Any
    targets: Any
    loss: Loss
    gammas: Mapping[str, nn.Parameter]
    roles: Mapping[str, str]

    @classmethod
    def of(cls, model: nn.Module, inputs: Any, targets: Any, found: ResidualMap | None, loss: Loss) -> GammaPasses:
        """Find the γ of a network.

        Raises:
            ValueError: there is none that is trained and not zero.
        """
        positional, named = arguments_of(inputs)
        known = find_residual_map(model, *positional, **named) if found is None else found
        gammas = {
            layer.path: model.get_parameter(layer.gamma)
            for layer in known.layers()
            if layer.kind == "norm" and layer.call == 0 and layer.gamma is not None
        }
        trained = {path: gamma for path, gamma in gammas.items() if gamma.requires_grad and bool(gamma.any())}
        if not trained:
            raise ValueError(
                f"The direction of γ is measured, and no norm of this {type(model).__name__} has a trained γ other "
                "than zero."
            )
        return cls(model, inputs, targets, loss, trained, {path: known.norms[path] for path in trained})

    def by_role(self) -> dict[str, list[str]]:
        """The paths of the norms of each role."""
        found: dict[str, list[str]] = {}
        for path, role in self.roles.items():
            found.setdefault(role, []).append(path)
        return found

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """In training mode, with everything put back behind."""
        with preserve_state(self.model, training=True), torch.enable_grad():
            yield

    def run(self, wanted: Mapping[str, nn.Parameter]) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits and gradients of some γ, by the paths of their norms; the same random state each time."""
        devices = {gamma.device for gamma in self.gammas.values() if gamma.is_cuda}
        with torch.random.fork_rng(devices=sorted(devices, key=str)):
            output = compute_logits(self.model, self.inputs)
        value = self.loss(output, self.targets)
        found = torch.autograd.grad(value, list(wanted.values()), allow_unused=True)
        gradients = {
            path: torch.zeros_like(gamma) if gradient is None else gradient
            for (path, gamma), gradient in zip(wanted.items(), found, strict=True)
        }
        return output.detach(), gradients


@contextmanager
def scaled(gammas: Iterable[nn.Parameter], factor: float) -> Iterator[None]:
    """Multiply parameters for the body, each once, and put back the very values."""
    kept = {gamma: gamma.detach().clone() for gamma in gammas}
    with torch.no_grad():
        for gamma in kept:
            gamma.mul_(factor)
    try:
        yield
    finally:
        with torch.no_grad():
            for gamma, value in kept.items():
                gamma.copy_(value)
