"""How a watch is attached to networks, optimizers, copies and wrappers, what it keeps, and that it leaves nothing."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import optimizer as of_torch
from watched import at, batch, mlp, train

import normless as nl


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
    before = [len(one) for one in tables]
    with train(model, 3) as watch:
        assert len(model._forward_pre_hooks) == 1
        assert [len(one) for one in tables] == [one + 1 for one in before]
    assert not model._forward_pre_hooks
    assert [len(one) for one in tables] == before
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
    assert all(call() is None for call in of_torch._global_optimizer_pre_hooks.values())


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
