"""Calls of public functions keep no memory."""

from __future__ import annotations

import gc
import inspect
import linecache
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from borrowed import live_tensors
from torch import Tensor, nn
from torch.fx.graph_module import _loader

import normless as nl
from normless import errors
from normless._internal.copying import copied
from normless.models import resnet_cifar

SIZE, CALLS = 8, 200


@cache
def network() -> nn.Module:
    torch.manual_seed(0)
    return resnet_cifar(8)


@cache
def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(SIZE, 3, 16, 16), torch.arange(SIZE) % 10


@cache
def mapped() -> nl.ResidualMap:
    return nl.residual_map(network(), batch()[0])


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.01)


def stepped(
    prepare: Callable[[nn.Module, torch.optim.Optimizer], Any], *, closes: bool = False
) -> Callable[[], None]:
    """A step of a copy that something watches or changes, which is closed or forgotten."""

    def call() -> None:
        model = copied(network())
        optimizer = optimizer_of(model)
        prepared = prepare(model, optimizer)
        with prepared if closes else nullcontext():
            F.cross_entropy(model(batch()[0]), batch()[1]).backward()
            optimizer.step()
            optimizer.zero_grad()

    return call


def ridden_along() -> None:
    ride = nl.RideAlong(("signal", "gradients"), when=lambda step: True)
    with ride.during(1, network(), mapped()):
        F.cross_entropy(network()(batch()[0]), batch()[1]).backward()
    network().zero_grad()
    assert len(ride.tables())


def clipped_by_hand() -> None:
    model = copied(network())
    F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    nl.optim.adaptive_gradient_clipping(model)


def refused() -> None:
    with pytest.raises(errors.InputsError):
        nl.diagnose(network(), (torch.randn(SIZE, 4, 16, 16), batch()[1]))


def saved_in(folder: Path) -> Callable[[], object]:
    return lambda: nl.save(converted(), folder / "saved")


@cache
def converted() -> nn.Module:
    return nl.convert(network(), "skipinit", batch()[0])


def loaded_from(folder: Path) -> Callable[[], object]:
    nl.save(converted(), folder / "saved")
    return lambda: nl.load(folder / "saved", model=network())


def with_optimizer() -> None:
    model = copied(network())
    nl.diagnose(model, batch(), optimizer=optimizer_of(model), trial_steps=2)


@cache
def with_group_norms() -> nn.Module:
    return nl.convert(network(), "group_norm", batch()[0])


def removed() -> None:
    model = copied(with_group_norms())
    removal = nl.remove_norms(model, batch()[0], start=1, interval=1)
    optimizer = optimizer_of(model)
    for _ in range(3):
        removal.loss(F.cross_entropy(model(batch()[0]), batch()[1])).backward()
        optimizer.step()
        optimizer.zero_grad()
        removal.step()


def plotted() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    nl.plot(mapped())
    pyplot.close("all")


# Each public function, and calls that take another way through it.
CALLED: dict[str, Callable[[], object]] = {
    "residual_map": lambda: nl.residual_map(network(), batch()[0]),
    "convert": lambda: nl.convert(network(), "fixup", batch()[0]),
    "refit": lambda: nl.refit(network(), "none", batch()[0]),
    "plan": lambda: nl.plan(network(), "fixup", batch()[0]),
    "scheme": lambda: nl.scheme("fixup", gain=0.5),
    "diagnose": lambda: nl.diagnose(network(), batch(), trial_steps=2),
    "diagnose with an optimizer": with_optimizer,
    "diagnose, refused": refused,
    "check_health": lambda: nl.check_health(network(), [batch()]),
    "treat": lambda: nl.treat(network(), batch(), scheme="fixup"),
    "watch": stepped(lambda model, _: nl.watch(model, interval=1), closes=True),
    "watch, not closed": stepped(lambda model, _: nl.watch(model, interval=1)),
    "probe": lambda: nl.probe(network(), batch(), ("signal", "backward", "gradients", "logits")),
    "RideAlong": ridden_along,
    "mixes_examples": lambda: nl.mixes_examples(network(), batch()[0]),
    "fold": lambda: nl.fold(copied(network()).eval(), batch()[0]),
    "freeze": lambda: nl.freeze(network()),
    "fuse_for_inference": lambda: nl.fuse_for_inference(copied(network()).eval(), batch()[0]),
    "param_groups": lambda: nl.param_groups(network(), batch()[0], lr=0.1, weight_decay=1e-4),
    "clip_in_step": stepped(lambda model, optimizer: nl.optim.clip_in_step(optimizer, model, residual_map=mapped())),
    "adaptive_gradient_clipping": clipped_by_hand,
    "step_in_backward": stepped(lambda _, optimizer: nl.optim.step_in_backward(optimizer), closes=True),
    "recompute_blocks": stepped(lambda model, _: nl.optim.recompute_blocks(model, batch()[0])),
    "remove_norms": removed,
    "plot": plotted,
}
OF_FILES: dict[str, Callable[[Path], Callable[[], object]]] = {"save": saved_in, "load": loaded_from}


@pytest.fixture(params=[*CALLED, *OF_FILES])
def call(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], object]]:
    name = request.param
    yield CALLED[name] if name in CALLED else OF_FILES[name](tmp_path)
    gc.enable()


def test_every_public_function_is_called() -> None:
    functions = {name for name in nl.__all__ if inspect.isfunction(getattr(nl, name))}
    assert functions <= {*CALLED, *OF_FILES}


def test_calls_keep_no_tensors(call: Callable[[], object]) -> None:
    call()
    before = live_tensors()
    call()
    assert live_tensors() == before


def test_exports_leave_no_code_of_graphs() -> None:
    """torch keeps the code of every graph that it makes for tracebacks."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))
    before = linecache.cache.keys() | _loader.eval_cache.keys()
    assert nl.residual_map(model, torch.randn(2, 4)).by_path
    assert not [name for name in {*linecache.cache, *_loader.eval_cache} - before if name.startswith("<")]
