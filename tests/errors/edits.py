"""Conversions and edits that are refused: the module, the number, the way out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written, linear_layers

import normless as nl
from errors.wrong import Wrong
from normless import edits
from normless.edits import Edit, Surgery
from normless.errors import MissingValuesError
from normless.models import dense, resnet_cifar, wide_resnet
from normless.signal._quadrature import activation_gain

IMAGES, ROWS, TOKENS = torch.randn(4, 3, 8, 8), torch.randn(4, 8), torch.randn(2, 5, 8)
Forward = Callable[[Any, Tensor], Any]
Unsupported = nl.errors.UnsupportedEditError


def converted(*row: Any, error: type[Exception] = Unsupported) -> Wrong:
    """A row of a network, its inputs, a scheme and words."""
    model, x, scheme, *words = row
    name = f"{scheme}: {', '.join(words)}"
    return Wrong(name, lambda: nl.convert(model, scheme, *([] if x is None else [x])), error, *words)


def edited(*row: Any) -> Wrong:
    """A row of a network, its inputs, edits and words."""
    model, x, applied, *words = row
    scheme = nl.Scheme("Mine", applied)
    name = f"{applied[-1]!r}: {', '.join(words)}"
    call = partial(nl.convert, model, scheme, *([] if x is None else [x]))
    return Wrong(name, call, Unsupported, *words)


def written(forward: Forward, names: str = "f g h", **parts: Any) -> nn.Module:
    """Linear layers of width 8 and what is done with them."""
    return Written(forward, **linear_layers(names, 8), **parts)


def block(**parts: Any) -> nn.Module:
    """x + g(relu(f(norm(x)))), where the parts may be others."""
    layers: dict[str, Any] = {**linear_layers("f g", 8), "norm": nn.LayerNorm(8)}
    return Written(lambda m, x: x + m.g(F.relu(m.f(m.norm(x)))), **layers | parts)


def skipped(model: nn.Module) -> nn.Module:
    """Convert a network by its map of four examples on one example, for which it leaves its branch out."""
    return nl.convert(model, "skipinit", ROWS[:1], residual_map=nl.residual_map(model, ROWS))


def branches(*blocks: nn.Module) -> nn.Sequential:
    """Blocks between linear layers."""
    return nn.Sequential(nn.Linear(8, 8), *(blocks or (block(), block())), nn.LayerNorm(8), nn.Linear(8, 3))


def normed(*layers: nn.Module) -> nn.Sequential:
    """Layers between convolutions."""
    return nn.Sequential(nn.Conv2d(3, 8, 3), *layers, nn.Conv2d(8, 2, 1))


class Change(Edit):
    """An edit of parameters, as somebody may write."""

    def __init__(self, **changes: float) -> None:
        self.changes = {name.replace("_", "."): value for name, value in changes.items()}

    def __repr__(self) -> str:
        return f"Change({self.changes})"

    def apply(self, surgery: Surgery) -> None:
        for name, value in self.changes.items():
            surgery.parameter(name).detach().fill_(value)
            if value == 0:
                surgery.log.zeroed.add(name)


def shut() -> nn.Module:
    last = nn.Linear(8, 8)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return branches(block(g=last))


def of_factor(factor: float) -> nn.Module:
    """A block whose branch is multiplied by a constant, a buffer."""
    made = written(lambda m, x: x + m.factor * m.g(F.relu(m.f(m.norm(x)))), "f g", norm=nn.LayerNorm(8))
    made.register_buffer("factor", torch.tensor(factor))
    return branches(made)


def of_own_norm(weight: Callable[[Tensor], Tensor]) -> nn.Module:
    """A block that divides its last weight by its own norm."""
    return branches(written(lambda m, x: x + F.linear(F.relu(m.f(x)), weight(m.g.weight)), "f g"))


def without_gamma() -> nn.Module:
    model = resnet_cifar(8)
    model.blocks[1].norm2 = nn.BatchNorm2d(32, affine=False)
    return model


def convolutions(*first: nn.Module) -> nn.Module:
    return Written(lambda m, x: x + m.conv2(m.conv1(x)), conv1=nn.Sequential(*first), conv2=nn.Conv2d(3, 3, 1))


LAYER = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
STACKS = {name: nn.TransformerEncoder(LAYER, 1, enable_nested_tensor=False) for name in ("encoder", "decoder")}
UNEVEN = Written(lambda m, x: m.decoder(m.encoder(x)), **STACKS)
WIDE, CIFAR, DENSE = wide_resnet(10, 1), resnet_cifar(8), dense(2, 8, in_features=8)
BARE = (edits.RemoveNorms(), edits.StandardizeWeights())
VARIANCE = edits.PredictedVariance
NAN = float("nan")
EDITED: list[tuple[Any, ...]] = [
    (shut(), ROWS, (edits.BranchMultiplier(0.0),), "its branch returns 0"),
    (WIDE, None, (edits.ScaleBranches(exponent=0.4),), "exponent of 1/2 to 1", "base depth", "adam or sgd"),
    (without_gamma(), None, (edits.ZeroLastGamma(),), "blocks.1.norm2", "has no γ"),
    *((DENSE, torch.full((64, 8), value), (edits.LSUV(0.1 + at),), "at stem", "variance")
      for at, value in enumerate((0.0, float("inf"), NAN))),
    (convolutions(nn.Conv2d(3, 3, 1, groups=3)), IMAGES, BARE[1:], "at conv1.0", "each output reads one value"),
    (branches(), ROWS, (Change(**{"1_f_weight": NAN}),), "not finite in training mode", "at 1.f"),
    (branches(), ROWS, (Change(**{"1_f_bias": -100}),), "1.f.weight", "no longer have any gradient"),
    (branches(), ROWS, (Change(**{"1_f_weight": 0, "1_g_weight": 0, "1_f_bias": 0}),), "1.f.weight", "never get a"),
    (WIDE, None, (VARIANCE(),), "blocks.0.norm1", "this normalization is still there"),
    (WIDE, None, (BARE[0], VARIANCE()), "StandardizeWeights does that before"),
    (WIDE, None, (*BARE, VARIANCE(0.0)), "α is a number above 0, got 0.0"),
]  # fmt: skip


def attentive(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> nn.Module:
    def forward(m: Any, x: Tensor) -> Any:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (m.f(x), m.g(x), m.h(x)))
        return x + m.out(attend(q, k, v).transpose(1, 2).flatten(2))

    return written(forward, "f g h out")


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bhkd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v)


def of_normed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(F.rms_norm(q, (4,)), F.rms_norm(k, (4,)), v)


def whole(**options: Any) -> nn.Module:
    attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
    return Written(lambda m, x: x + m.attention(x, x, x, need_weights=False)[0], attention=attention)


def whole_numbers(dtype: torch.dtype) -> nn.Module:
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    net[0].weight = nn.Parameter(torch.ones(8, 8, dtype=dtype), requires_grad=False)
    return net


ATTENTION = attentive(F.scaled_dot_product_attention)
HEADLESS = written(lambda m, x: x + m.f(x), "f")
SPECTRAL = of_own_norm(lambda w: w / torch.linalg.matrix_norm(w, 2))
TYPES = {torch.int8: "none", torch.int64: "group_norm(groups=1)"}
CONVERTED: list[tuple[Any, ...]] = [
    (UNEVEN, TOKENS, "deepnorm", "a layer of the decoder", "3 residual sums"),
    (LAYER, TOKENS, "lsuv", "self_attn", "it is not a layer with one weight and one output"),
    (SPECTRAL, ROWS, "fixup", "1", "divided by its own norm", "skipinit"),
    (of_factor(1e-5), ROWS, "fixup", "1", "multiplied by 1e-05"),
    (HEADLESS, ROWS, "only_final_norm", "no classifier"),
    (attentive(by_einsum), TOKENS, "qk_norm", "its logits are made by einsum"),
    (attentive(of_normed), TOKENS, "qk_norm", "its queries are normalized already"),
    (whole(add_bias_kv=True), TOKENS, "qk_norm", "at attention, a MultiheadAttention: it adds a learned key"),
    (branches(), ROWS, "soft_capping", "it has no attention"),
    (ATTENTION, TOKENS, "soft_capping(cap=0)", "a cap is above 0"),
    (whole(), TOKENS, "qk_norm + AddQKNorm()", "has norms of queries and keys already"),
    (DENSE, ROWS, "skipinit(alpha=sqrt(L))", "a number or at 1/sqrt(L)"),
    *((whole_numbers(dtype), ROWS, scheme, "weight of 0, a Linear", str(dtype)) for dtype, scheme in TYPES.items()),
]  # fmt: skip
SOMETIMES = written(lambda m, x: m.h(x if len(x) == 1 else x + m.g(F.relu(m.f(x)))))
TEXTS = {
    "none + Zero()": ("no edit 'Zero'", "The edits are AddQKNorm", "FILE.py:NAME"),
    "none + HeadDropout(p=0.2)": ("HeadDropout takes probability", "not take p"),
    "ZeroClassifier() + none": ("no scheme 'ZeroClassifier'",),
    "none + fixup": ("no edit 'fixup'",),
    "fixupp": ("'fixupp'", "Did you mean fixup?", "as_written, batch_norm, "),
    "skipinit(beta=1)": ("takes alpha, keep_scale", "not take beta"),
    "none(norms=some)": ("trunk or all",),
    "qk_norm(norm=batch)": ("'batch'",),
    "fixup(only=3)": ("qualified names",),
    "fixup(": ("Expected NAME or NAME",),
    "skipinit(1)": ("every argument needs its name",),
}
ERRORS = [
    *(edited(*row) for row in EDITED),
    *(converted(*row) for row in CONVERTED),
    *(Wrong(text, partial(nl.scheme, text), ValueError, *words) for text, words in TEXTS.items()),
    Wrong("swapped", lambda: nl.convert("fixup", DENSE), TypeError, "'fixup'", "Dense"),  # type: ignore[arg-type, type-var]
    Wrong("nrm", lambda: nl.convert(branches(), "none", ROWS, only="1.nrm"), ValueError, "only='1.nrm'", "1.norm?"),
    Wrong("part of others", lambda: nl.convert(DENSE, "none", only=nn.Linear(1, 1)), ValueError, "Linear"),
    Wrong("part f", lambda: nl.convert(branches(), "rezero", ROWS, only="1.f"), Unsupported, "no residual block"),
    Wrong("left out", lambda: skipped(SOMETIMES), Unsupported, "calls g 0 times instead of once"),
    Wrong("no gain", lambda: activation_gain(nn.PReLU(device="meta")), MissingValuesError, "PReLU", "no values"),
]  # fmt: skip
