"""Calls from Python with tensors, texts and numbers of which some are wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import normless as nl
from normless_lab.data import load_data
from normless_lab.sweeps import RateGrid, Shard, Sweep
from normless_lab.train import TrainConfig, train
from normless_papers.text import LabelledText, ParallelText, TextConfig, TranslationConfig

SCHEMES = [
    "skipinit",
    "none",
    "fixup",
    "lsuv",
    "batch_norm",
    "group_norm(groups=2)",
    "zeroinit",
    "nf_resnet",
    "x",
    "",
]
ODD = [
    -1,
    0,
    1,
    3,
    10**9,
    10**20,
    0.5,
    -0.5,
    float("nan"),
    float("inf"),
    None,
    True,
    "",
    "x",
    "1",
    (),
    [],
    {},
    (1, 2),
]


class Plain(nn.Module):
    """A residual network that must be traced: (B, 3, H, W) to (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head((h + self.conv(torch.relu(self.norm(h)))).mean((2, 3)))  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """A network of tokens: (B, T) to (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.inner, self.head = (
            *(nn.Embedding(8, 4), nn.LayerNorm(4)),
            *(nn.Linear(4, 4), nn.Linear(4, 3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head((h + self.inner(self.norm(h))).mean(1))  # type: ignore[no-any-return]


def _with_nan(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "plain": Plain,
    "eval": lambda: Plain().eval(),
    "dense": lambda: nl.models.build_model("normless:dense(depth=2, width=8, in_features=12, classes=3)"),
    "tokens": Tokens,
    "nan": lambda: _with_nan(Plain()),
    "double": lambda: Plain().double(),
    "half": lambda: Plain().bfloat16(),
    "meta": lambda: Plain().to("meta"),
    "frozen": lambda: Plain().requires_grad_(False),
    "converted": lambda: nl.convert(Plain(), "skipinit", torch.randn(2, 3, 4, 4)),
    "empty": lambda: nn.Sequential(),
    "none": lambda: None,
    "class": lambda: Plain,
    "function": lambda: torch.relu,
    "scripted": lambda: torch.jit.script(Plain()),
    "parallel": lambda: nn.DataParallel(Plain()),
}
FITTING = {
    "dense": torch.randn(4, 12),
    "tokens": torch.arange(20).reshape(4, 5) % 8,
    "double": torch.randn(4, 3, 4, 4).double(),
    "half": torch.randn(4, 3, 4, 4).bfloat16(),
}
SHAPES = [
    *((4, 3, 4, 4), (4, 3, 4, 4), (4, 3, 4, 4), (4, 12), (4, 5), (1, 3, 4, 4), (0, 3, 4, 4), (4, 1, 4, 4), (3, 4, 4)),
    *((4,), (), (4, 3), (5,), (4, 1), (4, 3, 0, 4), (2, 3, 1, 1)),
]
TENSOR = st.tuples(
    st.just("tensor"),
    st.sampled_from(SHAPES),
    st.sampled_from(["float32"] * 4 + ["float64", "int64", "int32", "bool", "complex64", "float16", "uint8", "meta"]),
    st.sampled_from(["normal"] * 4 + ["nan", "inf", "zero", "large", "negative"]),
)
LABELS = st.tuples(
    st.just("labels"),
    st.sampled_from([(4,)] * 5 + [(), (1,), (5,), (4, 1), (4, 3), (0,)]),
    st.sampled_from(["int64"] * 4 + ["int32", "float32", "bool", "uint8"]),
    st.sampled_from([2] * 4 + [3, 10, -1, -100, 10**9]),
)
OTHER = st.sampled_from([None, "text", 3, (), {}, [1.0], {"x": 1}, (None, None)]).map(lambda one: ("plain", one))
# Inputs and labels that fit the network.
FIT = st.just(("fit",))
INPUTS = st.one_of(FIT, FIT, TENSOR, OTHER)
TARGETS = st.one_of(FIT, FIT, LABELS, OTHER)


def value_of(stated: Any) -> Any:
    """The tensor, or other value, that a plain description stands for."""
    kind, *rest = stated
    if kind == "plain":
        return rest[0]
    shape, dtype, fill = rest
    if kind == "labels":
        return torch.full(shape, fill).to(getattr(torch, dtype))
    if dtype == "meta":
        return torch.empty(shape, device="meta")
    made = torch.randn(shape)
    special = {"nan": float("nan"), "inf": float("inf"), "zero": 0.0, "large": 1e30, "negative": -1.0}
    return (made if fill == "normal" else torch.full(shape, special[fill])).to(getattr(torch, dtype))


def _saved(model: Any, inputs: Any, targets: Any, text: str) -> Any:
    return nl.save(model, "saved", example_inputs=inputs)


def _convert(model: Any, inputs: Any, targets: Any, text: str) -> Any:
    return nl.convert(model, text, inputs)


CALLS: dict[str, Callable[[Any, Any, Any, str], Any]] = {
    "residual_map": lambda model, x, y, text: nl.residual_map(model, x),
    "convert": _convert,
    "convert without inputs": lambda model, x, y, text: nl.convert(model, text),
    "convert, example inputs": lambda model, x, y, text: nl.convert(model, text, example_inputs=x),
    "plan": lambda model, x, y, text: nl.plan(model, text, x),
    "param_groups": lambda model, x, y, text: nl.param_groups(model, x, lr=0.1, weight_decay=0.1),
    "probe": lambda model, x, y, text: nl.probe(model, (x, y)),
    "probe in eval": lambda model, x, y, text: nl.probe(model, (x, y), ("signal", "logits"), training=False),
    "probe a signal": lambda model, x, y, text: nl.probe(model, x, ("signal",)),
    "probe parameters": lambda model, x, y, text: nl.probe(model, (x, y), ("parameter_gradients", "covariance")),
    "probe a batch": lambda model, x, y, text: nl.probe(model, y),
    "probe by name": lambda model, x, y, text: nl.probe(model, (x, y), (text,)),
    "diagnose": lambda model, x, y, text: nl.diagnose(model, (x, y), trial_steps=0),
    "fold": lambda model, x, y, text: nl.fold(model, x),
    "fuse_for_inference": lambda model, x, y, text: nl.fuse_for_inference(model, x),
    "freeze": lambda model, x, y, text: nl.freeze(model),
    "mixes_examples": lambda model, x, y, text: nl.mixes_examples(model, x),
    "recompute_blocks": lambda model, x, y, text: nl.recompute_blocks(model, x),
    "save": _saved,
    "watch": lambda model, x, y, text: nl.watch(model).close(),
    "treat": lambda model, x, y, text: nl.treat(model, (x, y), scheme=text),
    "scheme": lambda model, x, y, text: nl.scheme(text),
}
FIELDS = [
    *("epochs", "rate", "batch_size", "momentum", "seed", "weight_decay", "decay_policy", "precision", "schedule"),
    *("model", "scheme", "data", "mixup", "crop", "flip", "devices", "clip", "label_smoothing", "nonsense"),
]
CONFIGS = {"image": TrainConfig, "text": TextConfig, "translation": TranslationConfig}
MAKERS: dict[str, Callable[..., Any]] = {
    **{name: kind.from_dict for name, kind in CONFIGS.items()},
    "sweep": lambda values: Sweep.from_dict({"name": "s", "rates": [0.1], "replicates": 1} | values),
    "axes": lambda values: Sweep.from_dict({"name": "s", "rates": [0.1], "replicates": 1, "axes": values}),
    "rates": lambda values: RateGrid.from_value(values),
    "scheme arguments": lambda values: nl.scheme("skipinit", **values),
    "options": lambda values: load_data("digits", **values),
    "sentences": lambda values: load_data("sentiment", kind=LabelledText, **values),
    "pairs": lambda values: load_data("grammar", kind=ParallelText, **values),
    "train": lambda values: train(values, "out"),  # type: ignore[call-overload]
}
# What these are given comes from YAML, and may be anything.
FROM_FILES = ["axes", "rates", "train"]
SWEEP_FIELDS = [
    "base",
    "axes",
    "rates",
    "replicates",
    "best",
    "seed",
    "run",
    "exclude",
    "keep_weights",
    "from",
]
OPTIONS = [
    "train",
    "test",
    "seed",
    "alpha",
    "keep_scale",
    "level",
    "to",
    "factor",
    "extensions",
    "validation",
    "source",
]
NESTED = st.recursive(
    st.sampled_from(ODD),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["epochs", "rate", "a", "from", "to"]), inner, max_size=3),
    ),
    max_leaves=5,
)


def _made(name: str, values: Any) -> Any:
    made = MAKERS[name](values)
    return made.points() if isinstance(made, Sweep) else made


def prepared(call: tuple[Any, ...]) -> Callable[[], Any]:
    """The call of a function with a network and tensors, which are made."""
    torch.manual_seed(0)
    name, model, inputs, targets, text = call
    fitting = FITTING.get(model, torch.randn(4, 3, 4, 4))
    x = fitting.clone() if inputs[0] == "fit" else value_of(inputs)
    y = torch.tensor([0, 1, 2, 0]) if targets[0] == "fit" else value_of(targets)
    return partial(CALLS[name], MODELS[model](), x, y, text)


def carry_out(call: tuple[Any, ...]) -> None:
    """Make one call."""
    torch.manual_seed(0)
    if call[0] == "make":
        _made(*call[1:])
    elif call[0] == "shard":
        Shard.from_text(call[1])
    elif call[0] == "load":
        nl.load(Path(call[1]), example_inputs=None if call[2] == ("fit",) else value_of(call[2]))
    else:
        prepared(call)()


MODEL = st.one_of(st.sampled_from(["plain", "dense", "tokens", "eval"]), st.sampled_from(list(MODELS)))
FUNCTION = st.sampled_from(list(CALLS))
WITH_TENSORS = st.one_of(
    st.tuples(FUNCTION, MODEL, FIT, FIT, st.sampled_from(SCHEMES)),
    st.tuples(FUNCTION, MODEL, TENSOR, FIT, st.sampled_from(SCHEMES)),
    st.tuples(FUNCTION, MODEL, FIT, LABELS, st.sampled_from(SCHEMES)),
    st.tuples(FUNCTION, MODEL, INPUTS, TARGETS, st.sampled_from(SCHEMES)),
)
"""Descriptions, for `carry_out`, of calls with a network and tensors."""
VALUES = st.dictionaries(st.sampled_from([*FIELDS, *SWEEP_FIELDS, *OPTIONS]), NESTED, max_size=3)
WITH_VALUES = st.one_of(
    st.tuples(st.just("make"), st.sampled_from([name for name in MAKERS if name not in FROM_FILES]), VALUES),
    st.tuples(st.just("make"), st.sampled_from(FROM_FILES), NESTED),
    st.one_of(
        st.tuples(st.just("shard"), st.text(max_size=6)),
        st.tuples(st.just("load"), st.sampled_from(["net", "run", "nowhere", "mine.py"]), INPUTS),
    ),
)
"""Descriptions of calls with plain values."""
