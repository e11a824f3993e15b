"""How a network and its optimizer were built: lost scales and stale tensors."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS, WIDTH, TOKENS = 3, 64, 40


class Branch(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm, self.fc, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(F.gelu(self.fc(self.norm(x)))) + x


class Language(nn.Module):
    """A model of tokens; `scale` says how the ends of its branches are initialized."""

    def __init__(self, scale: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = scale
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Branch(inner) for _ in range(LAYERS) for inner in (WIDTH, 4 * WIDTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.apply(self._init_weights)
        if scale == "first":
            # The bug: what `_init_weights` scales is drawn once more by something else.
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=0.02)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        for name, parameter in module.named_parameters():
            wanted = {"reached": "proj.weight", "first": "proj.weight", "never": "c_proj.weight", "none": "?"}
            if name == wanted[self.scale]:
                parameter.data.normal_(0, 0.02 / sqrt(2 * LAYERS))

    def forward(self, i: Tensor) -> Tensor:
        x = self.tokens(i)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def texts() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(TOKENS, (8, 13), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize(
    ("scale", "found", "advised"),
    [
        ("reached", [], []),
        ("first", ["unreached_initialization"], ["unscaled_branch_ends"]),
        ("never", [], ["unscaled_branch_ends"]),
        ("none", [], ["unscaled_branch_ends"]),
    ],
)
def test_the_scale_of_branch_ends(scale: str, found: list[str], advised: list[str]) -> None:
    diagnosis = diagnose(Language(scale), texts(), loss=loss)
    assert kinds(diagnosis) == found, str(diagnosis)
    assert [one.kind for one in diagnosis.advice] == advised
    for one in (*diagnosis.findings, *diagnosis.advice):
        assert float(one.evidence["deviation"]) == pytest.approx(0.02, rel=0.1)
        assert float(one.evidence["asked"]) == pytest.approx(0.02 / sqrt(2 * LAYERS), rel=0.1)
    if found:
        assert set(diagnosis.findings[0].where) == {f"blocks.{number}.proj.weight" for number in range(2 * LAYERS)}
