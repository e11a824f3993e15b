"""Converted networks sharded by FSDP2: trained, watched, saved by parts and loaded as the whole ones."""

from __future__ import annotations

import warnings
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import normless as nl
from normless.models import resnet_cifar

X, Y = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
TYPE = torch.float64


@cache
def converted(scheme: str) -> tuple[nn.Module, nl.ResidualMap]:
    torch.manual_seed(0)
    net = nl.convert(resnet_cifar(8, classes=3).to(TYPE), scheme, X.to(TYPE))
    return net, nl.residual_map(net)


def whole(scheme: str) -> nn.Module:
    return deepcopy(converted(scheme)[0])


def sharded(scheme: str) -> nn.Module:
    """On two processes; on four, two sharded copies."""
    net, processes = whole(scheme), dist.get_world_size()
    names = ("parts",) if processes == 2 else ("copies", "parts")
    mesh = init_device_mesh("cpu", (2,) * len(names), mesh_dim_names=names)
    for block in converted(scheme)[1].blocks:
        fully_shard(net.get_submodule(block.name), mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def optimizer_of(net: nn.Module, scheme: str) -> torch.optim.Optimizer:
    groups = nl.param_groups(net, lr=1e-2, weight_decay=1e-2, residual_map=converted(scheme)[1])
    return torch.optim.AdamW(groups)


def steps(
    net: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, watch: nl.doctor.Watch | None = None
) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x.to(TYPE)), y)
        (loss if watch is None else watch.loss(loss)).backward()
        optimizer.step()


def gathered(net: nn.Module) -> dict[str, Tensor]:
    return {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value  # type: ignore[operator]
        for name, value in net.state_dict().items()
    }


def assert_equal_weights(net: nn.Module, other: nn.Module) -> None:
    torch.testing.assert_close(gathered(net), gathered(other), rtol=1e-9, atol=1e-9)


def assert_equal_tables(table: pd.DataFrame, other: pd.DataFrame) -> None:
    """Tables with the same rows, to float32, in which a watch measures."""
    rows = [one.set_index(["step", "quantity", "place"])["value"].sort_index() for one in (table, other)]
    pd.testing.assert_series_equal(*rows, rtol=1e-4, atol=1e-7)


def _in_process(rank: int, folder: str, schemes: tuple[str, ...], processes: int) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", processes), rank=rank, world_size=processes
    )
    x, y = X[rank::processes], Y[rank::processes]
    for scheme in schemes:
        one, net, unwatched = whole(scheme), sharded(scheme), sharded(scheme)
        optimizers = [optimizer_of(each, scheme) for each in (one, net, unwatched)]
        with nl.watch(one, 1) as expected, nl.watch(net, 1) as watch:
            steps(one, optimizers[0], X, Y, expected)
            steps(net, optimizers[1], x, y, watch)
        steps(unwatched, optimizers[2], x, y)
        assert_equal_weights(net, one)
        assert_equal_tables(watch.table, expected.table)
        assert watch.messages == expected.messages
        pairs = zip(net.parameters(), unwatched.parameters(), strict=True)
        assert all(torch.equal(a.to_local(), b.to_local()) for a, b in pairs)
        _save_and_load(net, optimizers[1], scheme, f"{folder}/{scheme}", x, y)
    _not_finite_in_one(rank, x, y)
    dist.destroy_process_group()


def _save_and_load(
    net: nn.Module, optimizer: torch.optim.Optimizer, scheme: str, place: str, x: Tensor, y: Tensor
) -> None:
    """Another sharded network goes on from the checkpoint as this one."""
    model_state, optimizer_state = get_state_dict(net, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=place)
    other = sharded(scheme)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    its_optimizer = optimizer_of(other, scheme)
    model_state, optimizer_state = get_state_dict(other, its_optimizer)
    dcp.load(state := {"model": model_state, "optimizer": optimizer_state}, checkpoint_id=place)
    set_state_dict(other, its_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert_equal_weights(other, net)
    steps(net, optimizer, x, y)
    steps(other, its_optimizer, x, y)
    assert_equal_weights(other, net)


def _not_finite_in_one(rank: int, x: Tensor, y: Tensor) -> None:
    """A value that is not finite in one process is reported by both, and neither waits for the other."""
    net = sharded("skipinit")
    optimizer = optimizer_of(net, "skipinit")
    with nl.watch(net, 2) as watch:
        steps(net, optimizer, x, y, watch)
        steps(net, optimizer, x * (float("inf") if rank else 1.0), y, watch)
    assert [found.kind for found in watch.findings] == ["not_finite"]


def _run(folder: Path, schemes: tuple[str, ...], processes: int = 2) -> None:
    mp.spawn(_in_process, (str(folder), schemes, processes), nprocs=processes)
    for scheme in schemes:
        # One process reads what two have written.
        net, written = whole(scheme), whole(scheme)
        with warnings.catch_warnings():
            # torch says that it is one process.
            warnings.simplefilter("ignore")
            dcp.load(state := {"model": net.state_dict()}, checkpoint_id=folder / scheme, no_dist=True)
        net.load_state_dict(state["model"])
        steps(written, optimizer_of(written, scheme), X, Y)
        assert_equal_weights(net, written)


@pytest.mark.slow
def test_a_sharded_network_is_trained_watched_and_saved_as_the_whole_one(tmp_path: Path) -> None:
    _run(tmp_path, ("skipinit",))
