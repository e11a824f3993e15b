"""A watched training: warnings where the fault is, none in healthy training, and no trace afterwards."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, optimizer as of_torch
from watched import at, batch, mlp, train

import normless as nl
from normless.doctor.watch._hooks import OF_STEPS


@pytest.mark.parametrize("loss", [True, False])
def test_nothing_is_said_of_a_healthy_training(loss: bool) -> None:
    model = mlp()
    watch = train(model, 250, optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3), loss=loss)
    assert (watch.messages, watch.step) == ((), 250)


def test_a_watched_training_is_the_same_training() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    watched = copy.deepcopy(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nl.doctor.WatchWarning)
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
    with pytest.warns(nl.doctor.WatchWarning, match=f"(?s){said}"):
        watch = train(make(), steps, before=at(step, change), loss="without" not in name)
    first = watch.findings[0]
    assert (first.kind, first.where, first.evidence["step"]) == finding


@pytest.mark.filterwarnings("ignore::normless.doctor.WatchWarning")
@pytest.mark.parametrize("zeroed", [True, False])
def test_gradients_multiplied_by_zero_were_not_cleared(zeroed: bool) -> None:
    model = mlp()
    optimizer, watch = SGD(model.parameters(), lr=0.1), nl.watch(model)
    for _ in range(6):
        optimizer.zero_grad()
        model(batch()[0]).square().mean().backward()
        for weight in model.parameters():
            assert weight.grad is not None
            weight.grad.mul_(0.0 if zeroed else 1e30)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert [found.kind for found in watch.findings] == ["clipped_to_nothing"]


@pytest.mark.filterwarnings("ignore::normless.doctor.WatchWarning")
@pytest.mark.parametrize(
    ("make", "share"),
    [
        (lambda own: SGD(own, lr=0.1, momentum=0.9, weight_decay=5e-4), 0.0005),
        (lambda own: SGD(own, lr=0.1, momentum=0.9, weight_decay=0.05), 0.05),
        (lambda own: torch.optim.AdamW(own, lr=1e-2, weight_decay=0.1), 0.001),
        (lambda own: torch.optim.AdamW(own, lr=1e-2, weight_decay=10.0), 0.1),
    ],
)
def test_a_decay_is_judged_by_what_it_takes_from_the_weights(make: Any, share: float) -> None:
    model = mlp()
    optimizer = make(model.parameters())
    x, y = batch()
    diagnosed = nl.diagnose(model, (x, y), optimizer=optimizer).findings
    watched = train(model, 20, optimizer=optimizer).findings
    found = [one.evidence["per_step"] for one in (*diagnosed, *watched) if "per_step" in one.evidence]
    assert found == pytest.approx([share, share] if share > 0.02 else [])


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
    with pytest.warns(
        nl.doctor.WatchWarning, match="no forward pass was seen; of a compiled network watch what torch"
    ):
        optimizer.step()
    assert {"gradient", "update"} <= set(watch.table["quantity"])


@pytest.mark.filterwarnings("ignore::normless.doctor.WatchWarning")
def test_optimizers_that_step_during_the_backward_pass() -> None:
    networks = []
    for is_watched in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        watch = nl.watch(model, 5) if is_watched else None
        optimizers = {weight: SGD([weight], lr=0.05, momentum=0.9) for weight in model.parameters()}

        def step(weight: Tensor, optimizers: dict[nn.Parameter, SGD] = optimizers) -> None:
            optimizer = optimizers[weight]  # type: ignore[index]
            optimizer.step()
            optimizer.zero_grad()

        for weight in optimizers:
            weight.register_post_accumulate_grad_hook(step)
        for _ in range(30):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
        networks.append(model.state_dict())
        assert watch is None or (watch.messages, watch.step) == ((), 30)
    assert all(torch.equal(value, networks[1][name]) for name, value in networks[0].items())
