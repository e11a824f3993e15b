"""Calls from Python with networks, tensors, texts and numbers of which some are wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gallery import ROWS
from hypothesis import strategies as st
from torch import Tensor, nn

import normless as nl

Call = tuple[str, str, Any, Any, str]
# Inputs or labels that fit the network.
FIT = object()


class Tokens(nn.Module):
    """A network of tokens: (B, T) to (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(8, 4), nn.LayerNorm(4)
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head((h + self.inner(self.norm(h))).mean(1))  # type: ignore[no-any-return]


IMAGES = torch.randn(4, 1, 8, 8)
PLAIN: Callable[[], nn.Module] = ROWS["ResNetV2"].network
MODELS: dict[str, tuple[Callable[[], Any], Tensor]] = {
    "plain": (PLAIN, IMAGES),
    "dense": (lambda: nl.models.build_model("normless:dense(depth=2, width=8, in_features=12)"), torch.randn(4, 12)),
    "tokens": (Tokens, torch.arange(20).reshape(4, 5) % 8),
    "eval": (lambda: PLAIN().eval(), IMAGES),
    "nan": (lambda: PLAIN().apply(lambda one: [p.data.fill_(torch.nan) for p in one.parameters()]), IMAGES),
    "half": (lambda: PLAIN().bfloat16(), IMAGES.bfloat16()),
    "meta": (lambda: PLAIN().to("meta"), IMAGES),
    "frozen": (lambda: PLAIN().requires_grad_(False), IMAGES),
    "converted": (lambda: nl.convert(PLAIN(), "skipinit", IMAGES), IMAGES),
    "empty": (nn.Sequential, IMAGES),
    "none": (lambda: None, IMAGES),
    "class": (lambda: Tokens, IMAGES),
    "scripted": (lambda: torch.jit.script(Tokens()), IMAGES),
    "parallel": (lambda: nn.DataParallel(PLAIN()), IMAGES),
}


def tensor(shape: tuple[int, ...], dtype: str, fill: float | None) -> Tensor:
    """Of normal numbers, or of one number."""
    if dtype == "meta":
        return torch.empty(shape, device="meta")
    return (torch.randn(shape) if fill is None else torch.full(shape, fill)).to(getattr(torch, dtype))


SHAPES = [
    *((4, 1, 8, 8), (4, 1, 8, 8), (4, 1, 8, 8), (4, 12), (4, 5), (1, 1, 8, 8), (0, 1, 8, 8), (4, 3, 8, 8), (1, 8, 8)),
    *((4,), (), (4, 3), (5,), (4, 1), (4, 1, 0, 8), (2, 1, 1, 1)),
]
TYPES = ["float32"] * 4 + ["float64", "int64", "int32", "bool", "complex64", "float16", "uint8", "meta"]
FILLS = st.sampled_from([None] * 4 + [torch.nan, torch.inf, 0.0, 1e30, -1.0])
TENSOR = st.builds(tensor, st.sampled_from(SHAPES), st.sampled_from(TYPES), FILLS)
LABEL_SHAPES = [*[(4,)] * 5, (), (1,), (5,), (4, 1), (4, 3), (0,)]
KINDS = st.sampled_from(["int64"] * 4 + ["int32", "float32", "bool", "uint8"])
LABELS = st.builds(tensor, st.sampled_from(LABEL_SHAPES), KINDS, st.sampled_from([2, 2, 3, 10, -1, -100, 10**9]))
OTHER = st.sampled_from([None, "text", 3, (), {}, [1.0], {"x": 1}, (None, None)])
FUNCTIONS: dict[str, Callable[[Any, Any, Any, str], Any]] = {
    "residual_map": lambda model, x, y, text: nl.residual_map(model, x),
    "convert": lambda model, x, y, text: nl.convert(model, text, x),
    "convert without inputs": lambda model, x, y, text: nl.convert(model, text),
    "plan": lambda model, x, y, text: nl.plan(model, text, x),
    "param_groups": lambda model, x, y, text: nl.param_groups(model, x, lr=0.1, weight_decay=0.1),
    "probe": lambda model, x, y, text: nl.probe(model, (x, y)),
    "probe in eval": lambda model, x, y, text: nl.probe(model, (x, y), ("signal", "logits"), training=False),
    "probe by name": lambda model, x, y, text: nl.probe(model, (x, y), (text,)),
    "diagnose": lambda model, x, y, text: nl.diagnose(model, (x, y), trial_steps=0),
    "fold": lambda model, x, y, text: nl.fold(model, x),
    "fuse_for_inference": lambda model, x, y, text: nl.fuse_for_inference(model, x),
    "freeze": lambda model, x, y, text: nl.freeze(model),
    "mixes_examples": lambda model, x, y, text: nl.mixes_examples(model, x),
    "recompute_blocks": lambda model, x, y, text: nl.recompute_blocks(model, x),
    "save": lambda model, x, y, text: nl.save(model, "saved", example_inputs=x),
    "watch": lambda model, x, y, text: nl.watch(model).close(),
    "treat": lambda model, x, y, text: nl.treat(model, (x, y), scheme=text),
    "scheme": lambda model, x, y, text: nl.scheme(text),
}
SCHEMES = ["skipinit", "none", "fixup", "lsuv", "batch_norm", "group_norm(groups=2)", "zeroinit", "nf_resnet", ""]
MODEL = st.one_of(st.sampled_from(["plain", "dense", "tokens", "eval"]), st.sampled_from([*MODELS]))
FITTING = st.just(FIT)
PAIRS = st.one_of(
    *(st.tuples(FITTING, FITTING), st.tuples(TENSOR, FITTING), st.tuples(FITTING, LABELS)),
    st.tuples(st.one_of(FITTING, TENSOR, OTHER), st.one_of(FITTING, LABELS, OTHER)),
)
CALLS = st.tuples(st.sampled_from([*FUNCTIONS]), MODEL, PAIRS, st.sampled_from(SCHEMES)).map(
    lambda four: (four[0], four[1], *four[2], four[3])
)
"""A function, a network, inputs, labels and a text."""


def prepared(call: Call) -> Callable[[], Any]:
    """The call of a function with a network that is made now."""
    torch.manual_seed(0)
    name, model, inputs, targets, text = call
    make, fitting = MODELS[model]
    x = fitting if inputs is FIT else inputs
    y = torch.tensor([0, 1, 2, 0]) if targets is FIT else targets
    return partial(FUNCTIONS[name], make(), x, y, text)
