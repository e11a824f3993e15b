"""Maps compared with what people have read in the source, and that each difference is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normless as nl
from benchmarks.census import stated


class Nested(nn.Module):
    """A block with two branches, one with a projection and a gate inside a global skip path, and two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.logits = (nn.Linear(4, 4) for _ in range(3))
        self.parts = nn.ModuleDict({name: nn.Linear(4, 4) for name in "abcdefg"})
        self.norm, self.down = nn.LayerNorm(4), nn.LayerNorm(4)

    def forward(self, value: Tensor) -> Tensor:
        x = start = self.stem(value)
        x = x + self.parts["a"](x).relu() + self.parts["b"](x).tanh()
        y = self.parts["d"](self.norm(self.parts["c"](x)).relu())
        x = self.down(self.parts["g"](x)) + y * self.parts["e"](y).sigmoid()
        output: Tensor = self.logits(self.head(start + self.parts["f"](x)).relu())
        return output


INNER: list[dict[str, Any]] = [
    {"branches": [["parts.a"], ["parts.b"]]},
    {
        "each": {"end": [["d e", "norm"]]},
        "branch": ["parts: c {end[0]}"],
        "skip": ["parts.g"],
        "gates": ["parts.e"],
        "last": ["{end[1]}"],
        "down": ["down"],
    },
]
AROUND: dict[str, Any] = {"branch": ["parts.f"], "inner": INNER}
NESTED: dict[str, Any] = {
    "blocks": [AROUND],
    "stem": ["stem"],
    "classifier": ["logits"],
    "without": ["head"],
    "norms": 2,
}


def test_a_right_statement_differs_in_nothing() -> None:
    mapped = nl.residual_map(Nested(), torch.randn(2, 4))
    assert stated.differences(NESTED, mapped) == []
    assert stated.differences(NESTED, None) == ["the network was not mapped"]


def inside(number: int, **changes: Any) -> dict[str, Any]:
    """The statement with something else of an inner block."""
    return {
        "blocks": [
            {**AROUND, "inner": [{**one, **(changes if at == number else {})} for at, one in enumerate(INNER)]}
        ]
    }


PROJECTED = "the block [parts.c, parts.d, parts.e]"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (inside(0, branches=[["parts: a b"]]), ["[parts.a, parts.b] is stated, not mapped", "[parts.a] + [parts.b]"]),
        (inside(1, branch=["parts: d c e"]), ["[parts.d, parts.c, parts.e] is stated", f"{PROJECTED} is mapped"]),
        (inside(1, skip=[]), [f"{PROJECTED} has the skip path [parts.g], stated []"]),
        (inside(1, gates=["parts: d e"]), [f"{PROJECTED} has the gates [parts.e], stated [parts.d, parts.e]"]),
        (inside(1, last=[], down=["norm"]), ["the norm norm has the role last, stated down"]),
        ({"blocks": [{**AROUND, "inner": INNER[::-1]}]}, ["[parts.a] + [parts.b] is in another place"]),
        ({"stem": ["head"]}, ["the stem is [stem], stated [head]", "which is not stated"]),
        ({"classifier": ["head"]}, ["the classifier is logits, stated [head]", "which is not stated"]),
        ({"norms": 3}, ["2 norms, stated 3"]),
    ],
)
def test_each_wrong_statement_is_told(change: dict[str, Any], said: list[str]) -> None:
    told = stated.differences({**NESTED, **change}, nl.residual_map(Nested(), torch.randn(2, 4)))
    assert len(told) == len(said)
    for sentence, part in zip(told, said, strict=True):
        assert part in sentence
