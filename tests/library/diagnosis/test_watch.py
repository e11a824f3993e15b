"""A watched training: warnings where the fault is, none in healthy training, and no trace afterwards."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import optimizer as of_torch
from watched import at, batch, mlp, train

import normless as nl
from normless.diagnosis.hooks import OF_STEPS
from normless.diagnosis.jumps import bound, jumped
from normless.models import resnet_cifar


def kinds(watch: nl.Watch) -> list[str]:
    return [one.kind for one in watch.findings]


@pytest.mark.parametrize("loss", [True, False])
@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=2e-3)]
)
def test_nothing_is_said_of_a_healthy_training(make: Callable[..., torch.optim.Optimizer], loss: bool) -> None:
    model = mlp()
    watch = train(model, 250, optimizer=make(model.parameters()), loss=loss)
    assert (watch.messages, watch.step) == ((), 250)


@pytest.mark.parametrize("scheme", ["skipinit", "fixup", "batch_norm"])
def test_nothing_is_said_of_healthy_converted_networks(scheme: str) -> None:
    torch.manual_seed(0)
    model = nl.convert(resnet_cifar(8), scheme)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    x, y = torch.randn(8, 3, 8, 8), torch.arange(8)
    assert train(model, 33, interval=8, optimizer=optimizer, data=lambda: (x, y)).messages == ()


@pytest.mark.filterwarnings("ignore::normless.WatchWarning")
@pytest.mark.parametrize(("lr", "said"), [(0.05, []), (1e-5, ["lost_in_rounding"])])
def test_updates_that_low_precision_rounds_away_are_said(lr: float, said: list[str]) -> None:
    model = mlp().bfloat16()
    watch, optimizer = nl.watch(model, 5), torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    torch.manual_seed(1)
    for _ in range(20):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x.bfloat16()), y).backward()
        before, gradient = model[0].weight.detach().clone(), model[0].weight.grad != 0
        optimizer.step()
        if watch.step % 5 == 1:
            same = (before == model[0].weight)[gradient].float().mean()
            table = watch.table.set_index(["quantity", "place", "step"])["value"]
            assert table["lost", "0.weight", watch.step] == pytest.approx(float(same))
    assert [one for one in kinds(watch) if one != "large_updates"] == said
    if said:
        assert watch.findings[0].where == ("0.weight", "2.weight", "4.weight")
        assert "left at least 9" in watch.messages[0]


def test_a_watched_training_is_the_same_training() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    watched = copy.deepcopy(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nl.WatchWarning)
        train(watched, 12, interval=2)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1)
    for _ in range(12):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    assert all(torch.equal(one, watched.state_dict()[name]) for name, one in plain.state_dict().items())


def test_numbers_are_those_of_the_step() -> None:
    model = mlp()
    watch = nl.watch(model, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batch()
    outputs = [model[: end + 1](x) for end in range(5)]
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    watch.loss(loss)
    optimizer.step()
    values = watch.table.set_index(["quantity", "place"])["value"]
    for name, one in model.named_parameters():
        assert one.grad is not None
        assert values["gradient", name] == pytest.approx(float(one.grad.norm()), rel=1e-5)
        if one.dim() > 1:
            ratio = 0.1 * float(one.grad.norm()) / float(before[name].norm())
            assert values["update", name] == pytest.approx(ratio, rel=1e-4)
    for place, output in enumerate(outputs):
        assert values["output", str(place)] == pytest.approx(float(output.detach().square().mean().sqrt()), rel=1e-5)
    for place in (2, 4):
        assert values["off", str(place)] == pytest.approx(float((outputs[place - 1] == 0).all(0).float().mean()))
    assert values["loss", ""] == pytest.approx(float(loss.detach()))
    total = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None]).norm()
    assert values["gradient_norm", ""] == pytest.approx(float(total), rel=1e-5)


def hooked() -> nn.Sequential:
    model = mlp()
    model[2].weight.register_hook(lambda gradient: gradient / 0)
    return model


def jumps(model: nn.Module) -> None:
    model[2].weight.mul_(100)


def dies(model: nn.Module) -> None:
    model[2].bias.fill_(-100)


def infinite(model: nn.Module) -> None:
    model[2].bias.fill_(torch.inf)


# The network, the steps, the step of a change and the change, what is said, and the finding.
SAID: dict[str, tuple[Callable[[], nn.Module], int, int, Callable[[nn.Module], object], str, tuple[Any, ...]]] = {
    "jump": (mlp, 55, 52, jumps, "The loss jumped.*the output of 2 jumps first", ("jump", ("2",), 52)),
    "jump without a loss": (mlp, 55, 52, jumps, "no loss was passed to the watch", ("jump", ("2",), 52)),
    "infinite": (mlp, 16, 13, infinite, "Step 13: .*not finite: 2.bias holds such", ("not_finite", ("2.bias",), 13)),
    "gradient": (hooked, 1, 0, dies, r"that of 2\.weight; the next one is finite", ("not_finite", ("2.weight",), 1)),
    "dead": (mlp, 60, 32, dies, "100% of the units that 4 reads are 0", ("dead_units", ("4",), 46)),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_and_of_which_layer(name: str) -> None:
    make, steps, step, change, said, finding = SAID[name]
    with pytest.warns(nl.WatchWarning, match=f"(?s){said}"):
        watch = train(make(), steps, before=at(step, change), loss="without" not in name)
    first = watch.findings[0]
    assert (first.kind, first.where, first.evidence["step"]) == finding


def test_a_jump_of_gradients_without_one_of_outputs() -> None:
    def louder(model: nn.Module) -> None:
        model[2].weight.register_hook(lambda gradient: 500 * gradient)

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with pytest.warns(nl.WatchWarning, match=r"the gradient of 2\.weight jumps most"):
        watch = train(model, 43, before=at(42, louder), optimizer=optimizer, loss=False)
    assert watch.findings[0].where == ("2.weight",)


def test_a_single_odd_batch_is_no_jump() -> None:
    def odd(step: int, model: nn.Module) -> None:
        model[2].weight.data.mul_(100 if step == 52 else 0.01 if step == 53 else 1)

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    assert train(model, 80, before=odd, optimizer=optimizer).messages == ()


def test_inputs_that_are_mostly_zero_are_no_dead_units() -> None:
    sizes = itertools.count()

    def data() -> tuple[Tensor, Tensor]:
        count = 8 - next(sizes) % 4
        return F.one_hot(torch.randint(5, (count,)), 100).float(), torch.zeros(count, dtype=torch.long)

    model = nn.Linear(100, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert train(model, 12, interval=1, optimizer=optimizer, data=data).messages == ()


def test_multipliers_that_stay_0_are_those_that_no_optimizer_holds() -> None:
    torch.manual_seed(0)
    model = nl.convert(resnet_cifar(8), "skipinit")
    left_out = [name for name, _ in model.named_parameters() if name.endswith("multiplier")][:1]
    optimizer = torch.optim.SGD([one for name, one in model.named_parameters() if name not in left_out], lr=0.02)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watch = train(
            model, 6, interval=1, optimizer=optimizer, data=lambda: (torch.randn(4, 3, 8, 8), torch.arange(4))
        )
    stuck = [one for one in watch.findings if one.kind == "stuck_multiplier"]
    assert [(one.where, one.evidence["step"]) for one in stuck] == [(tuple(left_out), 5)]
    assert any(message.startswith("Step 5: 1 of 3 mult") and left_out[0] in message for message in watch.messages)
    assert len(caught) == len(watch.messages)


@pytest.mark.parametrize(
    ("rates", "steps", "kind", "place"),
    [((0.05, 1e-9, 0.05), 30, "small", "2.weight"), ((1e-3, 1e-3, 0.5), 4, "large", "4.weight")],
)
def test_updates_too_large_and_too_small(rates: tuple[float, ...], steps: int, kind: str, place: str) -> None:
    model = mlp()
    parts = zip((model[0], model[2], model[4]), rates, strict=True)
    make = torch.optim.SGD if kind == "small" else torch.optim.Adam
    optimizer = make([{"params": part.parameters(), "lr": rate} for part, rate in parts])
    with pytest.warns(nl.WatchWarning, match=rf"The updates of {place} are too {kind}"):
        watch = train(model, steps, optimizer=optimizer, interval=5 if kind == "small" else 1)
    assert watch.findings[0].where == (place,)
    assert kind == "large" or len(watch.findings) == 1


@pytest.mark.filterwarnings("ignore::normless.WatchWarning")
def test_a_schedule_that_ends_at_0_is_no_small_update() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def decay(step: int, _: nn.Module) -> None:
        optimizer.param_groups[0]["lr"] = 0.05 * 10.0 ** (-step / 5)

    assert kinds(train(model, 60, before=decay, optimizer=optimizer)) == ["early_decay"]


def test_a_bound_of_twice_the_largest_deviation_upward() -> None:
    assert bound([1.0, 2.0, 3.0, 4.0, 7.0], 0.5) == 3 + 2 * 4
    assert bound([3.0, 3.0, 3.0], 0.5) == 3.5
    past = [{"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 10.0}]
    assert jumped({"a": 3.1, "b": 30.0, "c": 9.0}, past, 3.0) == {"a": 3.1}


def test_copies_and_files_of_a_watched_network_are_its_own() -> None:
    model = mlp()
    names = list(model.state_dict())
    watch = train(model, 6)
    copied, pickled = copy.deepcopy(model), pickle.dumps(model)
    assert b"normless" not in pickled
    torch.save(model, buffer := io.BytesIO())
    buffer.seek(0)
    x, y = batch()
    for one in (copied, copy.deepcopy(copied), pickle.loads(pickled), torch.load(buffer, weights_only=False)):
        assert list(one.state_dict()) == names
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        F.cross_entropy(one(x), y).backward()
        optimizer.step()
    assert watch.step == 6
    assert nl.residual_map(model, x).depth == 0


def test_closing_removes_every_hook() -> None:
    model, tables = mlp(), (of_torch._global_optimizer_pre_hooks, of_torch._global_optimizer_post_hooks)
    gc.collect()
    before = len(OF_STEPS)
    with train(model, 3) as watch:
        assert len(model._forward_pre_hooks) == 1
        assert len(OF_STEPS) == before + 1
        inside = [len(one) for one in tables]
    assert not model._forward_pre_hooks
    assert len(OF_STEPS) == before
    # torch's tables change once in a process, since a step in another thread fails if they change.
    with train(mlp(), 3):
        assert [len(one) for one in tables] == inside
    rows = len(watch.table)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(batch()[0]).sum().backward()
    optimizer.step()
    assert len(watch.table) == rows > 0


def test_the_watch_lasts_as_long_as_the_network_and_no_longer() -> None:
    model = mlp()
    watch = weakref.ref(train(model, 3))
    gc.collect()
    assert watch() is not None
    del model
    gc.collect()
    assert watch() is None
    assert not OF_STEPS


def test_other_networks_closures_and_several_optimizers() -> None:
    model, other = mlp(), mlp()
    watch, x, y = nl.watch(model, 2), *batch()
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2, lr=0.1)

    def closure() -> Tensor:
        lbfgs.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    losses = [float(lbfgs.step(closure).detach()) for _ in range(4)]
    seen = watch.table.query("quantity == 'loss'")
    assert seen["step"].tolist() == [1, 3]
    assert seen["value"].tolist() == pytest.approx([losses[0], losses[2]])
    train(other, 2).close()
    assert watch.step == 4
    halves = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[:3], model[4])]
    for _ in range(6):
        F.cross_entropy(model(x), y).backward()
        for one in halves:
            one.step()
            one.zero_grad()
    # The second step of one that is not the last optimizer shows that it counts now.
    assert 8 <= watch.step <= 10
    assert {"0.weight", "2.weight", "4.weight"} <= set(watch.table.query("quantity == 'update'")["place"])


def test_a_compiled_network_is_watched_or_what_is_not_seen_is_said() -> None:
    model = mlp()
    watch = train(torch.compile(model, backend="eager"), 7)
    assert (watch.step, watch.messages) == (7, ())
    assert "output" in set(watch.table["quantity"])
    model = mlp()
    watch, compiled = nl.watch(model), torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled(batch()[0]).square().mean().backward()
    with pytest.warns(nl.WatchWarning, match="no forward pass was seen; of a compiled network watch what torch"):
        optimizer.step()
    assert {"gradient", "update"} <= set(watch.table["quantity"])


def test_a_table_in_parquet_and_its_plots(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nl.WatchWarning)
        watch = train(mlp(), 60, before=at(52, lambda model: model[2].weight.mul_(100)))
    watch.save(tmp_path / "watch.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "watch.parquet"), watch.table)
    line = watch.plot()
    assert line.get_lines()[0].get_xdata().tolist() == list(range(1, 61, 5))
    marks = [one.get_xdata()[0] for one in line.get_lines() if one.get_label() == "_mark"]
    assert marks == [one.evidence["step"] for one in watch.findings] != []
    heat = watch.plot("gradient")
    gradient = watch.table.query("quantity == 'gradient' and place == '0.weight'")["value"]
    row = heat.collections[0].get_array()[0]
    assert (10**row).tolist() == pytest.approx((gradient / gradient.median()).tolist())
    assert [one.get_text() for one in heat.get_yticklabels()][:2] == ["0.weight", "0.bias"]
