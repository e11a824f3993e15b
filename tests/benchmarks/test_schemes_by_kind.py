"""The networks of docs/results/schemes_by_kind.md, the runs side by side, and the tables of the page."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import normless as nl

IMPOSSIBLE = "is not possible"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("schemes_by_kind")


@pytest.fixture
def tables(runs: ModuleType) -> ModuleType:
    return importlib.import_module("schemes_by_kind_table")


def entry_of(runs: ModuleType, name: str) -> Any:
    return next(entry for entry in runs.NETWORKS if entry.name == name)


@pytest.mark.slow
def test_networks_side_by_side_train_as_each_alone(runs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "STEPS", 4)
    bench, scheme = runs.Bench(entry_of(runs, "VAE")), "fixup"
    asked = [runs.Run("sgd", 0.02, 0), runs.Run("adamw", 0.003, 0), runs.Run("sgd", 0.02, 1)]
    for run, outcome in zip(asked, bench.trained(scheme, asked), strict=True):
        network = bench.converted(scheme, run.seed)
        decay, mapped = {"sgd": 5e-4, "adamw": 0.01}[run.optimizer], nl.residual_map(network, *bench.inputs)
        groups = nl.param_groups(network, lr=run.rate, weight_decay=decay, residual_map=mapped)
        sgd, adamw = partial(torch.optim.SGD, momentum=0.9), torch.optim.AdamW
        optimizer = (sgd if run.optimizer == "sgd" else adamw)(groups)
        losses = []
        for done, rows in enumerate(bench.batches(run.seed)):
            for group in optimizer.param_groups:
                group["lr"] = run.rate * group["rate_scale"] * runs.schedule(done)
            batch = bench.task.train.at(rows)
            optimizer.zero_grad()
            loss = bench.task.loss(network(*batch.inputs), *batch.targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        network.eval()
        batches = [bench.task.held_out.at(rows) for rows in torch.arange(352).split(32)]
        with torch.no_grad():
            tested = [float(bench.task.loss(network(*batch.inputs), *batch.targets)) for batch in batches]
        assert outcome["train"] == pytest.approx(sum(losses) / 4, rel=1e-3)
        assert outcome["held_out"] == pytest.approx(sum(tested) / len(tested), rel=1e-3)


def test_a_diverged_run_leaves_those_beside_it_alone(runs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "STEPS", 6)
    bench = runs.Bench(entry_of(runs, "dueling Q-network"))
    wild, tame = runs.Run("sgd", 1e6, 0), runs.Run("sgd", 0.02, 0)
    outcomes = bench.trained("skipinit", [wild, tame])
    assert outcomes[0] == {"diverged": True}
    assert outcomes[1] == pytest.approx(bench.trained("skipinit", [tame])[0], rel=1e-4)


def made_up(rate: float, seed: int, loss: float | None, scheme: str = "as_written", optimizer: str = "sgd") -> Any:
    outcome = {"diverged": True} if loss is None else {"train": loss, "held_out": 2 * loss}
    return {"network": "ViT", "scheme": scheme, "optimizer": optimizer, "rate": rate, "seed": seed, **outcome}


def cell(runs: ModuleType, scheme: str, losses: list[float | None]) -> Iterator[Any]:
    """All rates of both optimizers, the third the best on seed 0, and the other seeds at it."""
    for optimizer, rates in runs.RATES.items():
        for rate in rates:
            yield made_up(rate, 0, losses[0] if rate == rates[2] else None, scheme, optimizer)
        yield from (made_up(rates[2], seed, losses[seed], scheme, optimizer) for seed in (1, 2))


def results_of(runs: ModuleType, path: Path, rows: list[Any]) -> Any:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return runs.Results(path)


def test_verdicts_compare_held_out_losses_with_the_original(
    runs: ModuleType, tables: ModuleType, tmp_path: Path
) -> None:
    rows = [
        *cell(runs, "as_written", [0.20, 0.21, 0.19]),
        *cell(runs, "skipinit", [0.10, 0.10, 0.11]),
        *cell(runs, "fixup", [0.20, 0.20, 0.20]),
        *cell(runs, "dyt", [0.20, 2.0, 0.20]),
        *cell(runs, "none", [0.20, None, 0.20]),
        {
            "network": "ViT",
            "scheme": "nf_resnet",
            "refused": f"nf_resnet {IMPOSSIBLE}: Edit() {IMPOSSIBLE} at a.b: a test; more.",
        },
    ]
    table = tables.Table(results_of(runs, tmp_path / "rows.jsonl", rows))
    expected = {"skipinit": "ahead", "fixup": "level", "dyt": "behind", "none": "diverged", "nf_resnet": "refused"}
    assert {scheme: table.verdict("ViT", scheme) for scheme in expected} == expected
    assert table.verdict("ViT", "group_norm") == table.verdict("GAT", "fixup") == ""


def test_the_page_has_the_tables_of_the_committed_runs(runs: ModuleType, tables: ModuleType) -> None:
    table = tables.Table(runs.Results(tables.RESULTS))
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.written(page, tables.parts(table)) == page
