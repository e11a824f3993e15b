"""A watched training: warnings where the fault is, none in healthy training, and no trace afterwards."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path

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
    watch = nl.watch(model, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    x, y = torch.randn(8, 3, 8, 8), torch.arange(8)
    for _ in range(33):
        optimizer.zero_grad()
        watch.loss(F.cross_entropy(model(x), y)).backward()
        optimizer.step()
    assert watch.messages == ()


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


@pytest.mark.parametrize(("loss", "what"), [(True, "The loss jumped"), (False, "no loss was passed to the watch")])
def test_a_jump_and_the_layer_whose_output_jumped_first(loss: bool, what: str) -> None:
    with pytest.warns(nl.WatchWarning, match=what):
        watch = train(mlp(), 55, before=at(52, lambda model: model[2].weight.mul_(100)), loss=loss)
    first = watch.findings[0]
    assert (first.kind, first.where, first.evidence["step"]) == ("jump", ("2",), 52)
    assert "the output of 2 jumps first" in watch.messages[0]


class Loud(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient * ctx.factor, None  # type: ignore[attr-defined]


def test_a_jump_of_gradients_without_one_of_outputs() -> None:
    class Noisy(nn.Linear):
        factor = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, Loud.apply(self.weight, self.factor), self.bias)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), Noisy(32, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with pytest.warns(nl.WatchWarning, match=r"the gradient of 2\.weight jumps most"):
        watch = train(
            model, 43, before=at(42, lambda m: setattr(m[2], "factor", 500.0)), optimizer=optimizer, loss=False
        )
    assert watch.findings[0].where == ("2.weight",)


def test_a_single_odd_batch_is_no_jump() -> None:
    def odd(step: int, model: nn.Module) -> None:
        model[2].weight.data.mul_(100 if step == 52 else 0.01 if step == 53 else 1)

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    assert train(model, 80, before=odd, optimizer=optimizer).messages == ()


class Raises(nn.Module):
    """A block whose own code takes the logarithm of a negative number once `broken`."""

    broken = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = (x - 1e3).log() if self.broken else x
        return self.second(x)


def test_values_that_are_not_finite_and_where_they_arise() -> None:
    def infinite(model: nn.Module) -> None:
        model[2].bias.fill_(torch.inf)

    with pytest.warns(nl.WatchWarning, match="Step 13: The loss is not finite: 2.bias holds such values"):
        watch = train(mlp(), 16, before=at(13, infinite))
    assert kinds(watch) == ["not_finite"]
    with pytest.warns(nl.WatchWarning, match=r"log at line \d+ of test_watch.py, `x = \(x - 1e3\).log"):
        watch = train(Raises(), 16, before=at(13, lambda model: setattr(model, "broken", True)))
    assert kinds(watch) == ["not_finite"]


def test_a_gradient_that_is_not_finite_where_all_outputs_are() -> None:
    model = mlp()
    model[2].weight.register_hook(lambda gradient: gradient / 0)
    with pytest.warns(
        nl.WatchWarning, match=r"The gradient is not finite: .*that of 2\.weight; the next one is finite"
    ):
        train(model, 1)


def test_units_that_die_are_named_by_the_layer_that_reads_them() -> None:
    with pytest.warns(nl.WatchWarning, match="100% of the units that 4 reads are 0"):
        watch = train(mlp(), 60, before=at(32, lambda model: model[2].bias.fill_(-100)))
    assert [(one.kind, one.where, one.evidence["step"]) for one in watch.findings] == [("dead_units", ("4",), 46)]


def test_inputs_that_are_mostly_zero_are_no_dead_units() -> None:
    torch.manual_seed(0)
    model = nn.Linear(100, 3)
    watch, optimizer = nl.watch(model, 1), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        optimizer.zero_grad()
        x = F.one_hot(torch.randint(5, (8 - step % 4,)), 100).float()
        watch.loss(F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long))).backward()
        optimizer.step()
    assert watch.messages == ()


def test_multipliers_that_stay_0_are_those_that_no_optimizer_holds() -> None:
    torch.manual_seed(0)
    model = nl.convert(resnet_cifar(8), "skipinit")
    left_out = [name for name, _ in model.named_parameters() if name.endswith("multiplier")][:1]
    optimizer = torch.optim.SGD([one for name, one in model.named_parameters() if name not in left_out], lr=0.02)
    watch = nl.watch(model, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(6):
            model.zero_grad()
            watch.loss(F.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.arange(4))).backward()
            optimizer.step()
    stuck = [one for one in watch.findings if one.kind == "stuck_multiplier"]
    assert [(one.where, one.evidence["step"]) for one in stuck] == [(tuple(left_out), 5)]
    assert (
        f"Step 5: 1 of 3 multipliers have been exactly 0 since the first step, for example {left_out[0]}."
        in watch.messages
    )
    assert len(caught) == len(watch.messages)


def test_updates_too_large_and_too_small() -> None:
    model = mlp()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1e-9}]
    optimizer = torch.optim.SGD([*groups, {"params": model[4].parameters()}], lr=0.05)
    with pytest.warns(nl.WatchWarning, match=r"The updates of 2\.weight are too small"):
        watch = train(model, 30, optimizer=optimizer)
    assert [one.where for one in watch.findings] == [("2.weight",)]
    model = mlp()
    optimizer = torch.optim.Adam(
        [{"params": model[:3].parameters()}, {"params": model[4].parameters(), "lr": 0.5}], 1e-3
    )
    with pytest.warns(nl.WatchWarning, match=r"The updates of 4\.weight are too large"):
        watch = train(model, 4, optimizer=optimizer, interval=1)
    assert watch.findings[0].where == ("4.weight",)


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
