"""A person's network, trained further with L2 by role: what is recorded, the checks of it, and resumption."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from papers_helpers import DATA, InThisProcess, carried_out, context_in, folder_with
from torch import nn

import normless as nl
from normless.probes import RideAlong
from normless_lab.data import Augmentation, load_data
from normless_lab.plots import svg_text
from normless_lab.sweeps import Laboratory, RateGrid
from normless_papers.artefact import Context, Evidence, artefact_of
from normless_papers.experiments.effort import Effort
from normless_papers.experiments.image_runs import PaperConfig
from normless_papers.gamma.course import COLUMNS, Course, Evenly
from normless_papers.gamma.transfer import Transfer, in_torchvision
from normless_papers.published import published_as
from normless_papers.results.reproduce import reproduce
from normless_papers.results.reproduction import Reproduction

EFFORT = Effort(
    data=DATA,
    epochs=1,
    batch_size=16,
    crop=0,
    rates=RateGrid((0.1, 0.2), None),
    replicates=1,
    settings={"schedule": "constant", "weight_decay": 0.1, "precision": "64-true"},
    variants={"resnet_18": {"model": "normless:resnet(depth=18, channels=4)"}},
    reduced="ResNet-18 with 4 channels.",
    further={"rates": [0.05]},
)
CHOICES = ["W", *COLUMNS, "gamma_all", "guidelines"]
STEPS = 8
Result = tuple[Reproduction, Context]
Tables = tuple[pd.DataFrame, pd.DataFrame]


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with(tmp_path_factory.mktemp("mine") / "my_network")


@pytest.fixture(scope="module")
def result(mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    """The result of the command, with its context."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch, Laboratory(out / "laboratory", executor=InThisProcess) as lab:
        patch.setitem(artefact_of("gamma/table-2").settings, "smoke", {"effort": EFFORT})
        reproduced = reproduce("gamma/table-2", "smoke", out=out, data=DATA, weights=str(mine), laboratory=lab)
        assert not reproduced.error, reproduced.error
        folder = out / "artefacts" / "gamma" / "table-2" / "smoke" / "files"
        yield reproduced, Context("smoke", lab, folder, DATA, weights=str(mine))


@pytest.fixture(scope="module")
def tables(result: Result) -> Tables:
    gammas, stream = (pd.read_csv(result[1].directory / f"{name}.csv") for name in ("gammas", "stream"))
    return gammas, stream


def test_every_choice_and_seed_is_recorded_from_first_to_last_step(tables: Tables, result: Result) -> None:
    for table in tables:
        assert sorted(set(zip(table["l2"], table["seed"], strict=True))) == sorted((l2, 0) for l2 in CHOICES)
        assert set(table["step"]) == set(range(1, STEPS + 1))
        assert set(table["rate"]) == {0.05}
    gammas, stream = tables
    assert set(gammas["role"]) == {"stem", "last", "down", "other"}
    assert len(stream) == 8 * STEPS * len(CHOICES)
    assert np.isfinite(stream[["variance", "pooled_variance", "branch_second_moment"]]).all(axis=None)
    assert set(stream[stream["resets"]]["name"]) == {"layer2.0", "layer3.0", "layer4.0"}
    row = result[0].measured.iloc[0]
    assert row["model"] == "my_network"
    assert all(row[f"W_{l2}_n"] == 1 for l2 in CHOICES[1:])


def test_the_records_are_those_of_a_loop_of_ones_own(tables: Tables, result: Result) -> None:
    """SGD with momentum and L2 on W and γ_down written out, from the saved network; seed 0."""
    network = nl.load(result[1].directory / "pretrained" / "my_network").double().train()
    norms, outputs = list[float](), list[torch.Tensor]()
    network.get_submodule("layer2.0").register_forward_hook(lambda *of: outputs.append(of[2].detach()))
    down = {f"layer{stage}.0.downsample.1.weight" for stage in (2, 3, 4)}
    speed = {name: torch.zeros_like(value) for name, value in network.named_parameters()}
    for batch in load_data(DATA).train_batches(16, seed=0, epoch=0, augmentation=Augmentation()):
        norms.append(float(torch.cat([network.get_parameter(name).detach() for name in down]).norm()))
        network.zero_grad()
        nn.functional.cross_entropy(network(batch.inputs.double()), batch.targets).backward()
        for name, value in network.named_parameters():
            assert value.grad is not None
            decayed = value.dim() > 1 or name in down
            speed[name].mul_(0.9).add_(value.grad + (0.1 * value.data if decayed else 0.0))
            value.data.sub_(0.05 * speed[name])
    gammas, stream = (table[(table["l2"] == "gamma_down") & (table["seed"] == 0)] for table in tables)
    squares = gammas[gammas["role"] == "down"].set_index("step")["gamma_norm"] ** 2
    assert (squares.groupby("step").sum() ** 0.5).to_numpy() == pytest.approx(norms, rel=1e-9)
    assert norms[-1] < 0.9 * norms[0]
    variances = [float(output.var((0, 2, 3), correction=0).mean()) for output in outputs]
    assert stream[stream["name"] == "layer2.0"]["variance"].to_numpy() == pytest.approx(variances, rel=1e-9)


def test_the_checks_the_figure_and_the_distance(result: Result) -> None:
    found, context = result
    claims = {own.claim: own for own in found.checks}
    assert len(claims) == 4 + 8
    shrinks = claims["‖gamma_last‖ of my_network ends smaller with L2 on it than without."]
    assert shrinks.numbers["gamma_last"] < 0.95 * shrinks.numbers["W"]
    assert {own.verdict for own in found.checks} == {"inconclusive"}, "a single seed decides nothing"
    assert found.demonstrates
    assert found.verdict == "not seen here"
    assert found.distance.network == f"the weights of {context.weights}"
    assert "128" in found.distance.data
    assert any("trained further for 1 epochs" in remark for remark in found.remarks)
    assert (context.directory.parent / "figure.png").is_file()
    text = (context.directory.parent / "figure.svg").read_text()
    assert not [name for name in ("W, γ_last, γ_others", "‖γ_0‖", "variance after layer4.1") if name not in text]


def test_the_recorded_runs_are_those_that_are_compared(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single rate is trained once; without records the result is the same; nothing is trained again."""
    found, context = result
    assert len(list((context.directory / "course").iterdir())) == len(found.runs) == 7
    assert not list((context.directory / "course").glob("*/checkpoint*"))
    rows = context.lab.state.read(found.runs).values()
    (row,) = (own for own in rows if own.config["decay_policy"] == "weights" and own.config["seed"] == 0)
    with Laboratory(context.lab.folder.with_name("plain"), executor=InThisProcess) as lab:
        (plain,) = lab.carry_out([row.settings()])
    assert plain.result is not None
    assert row.result is not None
    assert plain.result["test_loss"] == row.result["test_loss"]

    def only_nothing(lab: Laboratory, runs: Mapping[str, object], **_: object) -> None:
        assert not runs

    monkeypatch.setattr(Laboratory, "_carry_out", only_nothing)
    again = carried_out("gamma/table-2", context, effort=EFFORT)
    assert again.measured.equals(found.measured)
    # The stored result is of these very files.
    file = Path(str(context.weights)) / "weights.pt"
    assert found.asked["files"]["weights.pt"] == sha256(file.read_bytes()).hexdigest()
    assert found.asked["files"].keys() == {"model.txt", "weights.pt"}


class Dying(InThisProcess):
    """An executor that is interrupted after some runs; counts those that begin."""

    left, begun = 3, 0

    def submit(self, function: Any, *args: Any, group: Any = None) -> Future[Any]:
        if function.__name__ == "carry_out_run":
            if Dying.begun == Dying.left:
                raise KeyboardInterrupt
            Dying.begun += 1
        return super().submit(function, *args, group=group)


def test_figure_3_resumes_where_it_was_interrupted(mine: Path, tmp_path: Path) -> None:
    here = replace(context_in(tmp_path, weights=str(mine)), lab=Laboratory(tmp_path / "lab", executor=Dying))
    effort = replace(EFFORT, further={"rates": [0.01, 0.05]})
    settings: dict[str, Any] = {"effort": effort, "strengths": (0.5,), "model": ""}
    with pytest.raises(KeyboardInterrupt):
        carried_out("gamma/figure-3", here, **settings)
    Dying.left = 100
    evidence = carried_out("gamma/figure-3", here, **settings)
    # Four runs at two rates, of which the best two are recorded.
    assert len(evidence.facts.runs.table) == 4
    assert Dying.begun == 4 + 2
    table = pd.read_csv(here.directory / "gammas.csv")
    assert len(table[["lambda", "l2", "rate", "seed"]].drop_duplicates()) == 2
    assert [own.claim for own in evidence.checks][1:] == [
        "‖gamma_down‖ of 0.5 ends smaller with L2 on it than without.",
        "With L2 on gamma_down of 0.5, blocks reset the stream to a smaller variance.",
    ]
    assert evidence.draw is not None
    assert "lambda 0.5: W, γ_down" in svg_text(evidence.draw())


def made_up(right: bool) -> Course:
    """With L2 its γ, and what it sets, are halved; or doubled."""
    factor = 0.5 if right else 2.0
    gammas, stream = [], []
    for l2 in ("W", *COLUMNS):
        for seed in range(3):
            run = {"model": "net", "l2": l2, "rate": 0.1, "seed": seed, "step": 9}
            noise = 1 + 0.01 * seed
            for column, role in COLUMNS.items():
                norm = noise * (factor if l2 == column else 1)
                gammas.append(run | {"layer": role, "role": role, "gamma_norm": norm})
            for block in (1, 2):
                branch = factor**3 if l2 == "gamma_others" and not right else factor if l2 == "gamma_last" else 1.0
                moments = {
                    "branch_second_moment": noise * branch,
                    "skip_second_moment": noise * (factor if l2 == "gamma_0" and block == 1 else 1.0),
                    "second_moment": noise * (factor if l2 == "gamma_down" and block == 2 else 1.0),
                }
                own = {"block": block, "name": f"b{block}", "resets": block == 2, "variance": 1.0}
                stream.append(run | own | moments)
    return Course(("model", "l2"), pd.DataFrame(gammas), pd.DataFrame(stream))


def test_checks_hold_as_the_paper_has_it_fail_on_the_opposite_and_equal_runs_decide_nothing() -> None:
    for right, verdict in ((True, "holds"), (False, "fails")):
        assert [own.verdict for own in made_up(right).checks()] == [verdict] * 8
    course = made_up(True)
    same = replace(course, gammas=course.gammas.assign(gamma_norm=1.0 + 0.1 * course.gammas["seed"]))
    verdicts = [own.verdict for own in same.checks() if own.claim.startswith("‖")]
    assert verdicts in (["fails"] * 4, ["inconclusive"] * 4)


def test_further_networks_have_figures_of_their_own(tmp_path: Path) -> None:
    course = made_up(True)
    both = [pd.concat([table, table.assign(model="net 2")]) for table in (course.gammas, course.stream)]
    runs: Any = SimpleNamespace(axes=["model", "l2"])
    transfer = Transfer(runs, "test_accuracy", Course(course.labels, *both))
    rows = [{"model": name, "l2": l2, "difference": 1.0, "error": 0.1} for name in ("net", "net 2") for l2 in COLUMNS]
    vars(transfer)["table"] = pd.DataFrame(rows)
    evidence = transfer.with_course(Evidence(pd.DataFrame({"a": [1]}), None), "Here", tmp_path)
    files = {"gammas.csv", "stream.csv", "course-net 2.png", "course-net 2.svg"}
    assert {path.name for path in tmp_path.iterdir()} == files
    assert "course-NAME.png" in evidence.remarks[-1]
    assert len(transfer.course.checks()) == 16
    shown = (tmp_path / "course-net 2.svg").read_text()
    assert "variance after b2" in shown
    assert "W, γ_down" in shown


def test_networks_of_the_table_are_torchvisions() -> None:
    models = pytest.importorskip("torchvision").models
    known = {in_torchvision(row["model"]) for row in published_as("gamma/table-2").rows}
    assert len(known) == 8
    assert known <= set(models.list_models())


@pytest.mark.parametrize("steps", [1, 2, 20, 21, 22, 100, 781])
def test_records_are_even_and_have_both_ends(steps: int) -> None:
    when = Evenly(steps)
    taken = [step for step in range(1, steps + 1) if when(step)]
    assert (taken[0], taken[-1], len(taken)) == (1, steps, min(steps, 21))
    assert np.ptp(np.diff(taken)) <= 1 if len(taken) > 1 else steps == 1
    # It goes to the processes of a laboratory.
    assert pickle.loads(pickle.dumps(when)) == when


def test_the_laboratory_records_each_run_for_itself(tmp_path: Path) -> None:
    """Runs of one process do not share rows; finished runs without records are carried out again."""
    network = "normless:resnet(depth=18, channels=4)"
    configs = [PaperConfig(model=network, data=DATA, epochs=1, batch_size=64, seed=seed) for seed in (0, 1)]
    with Laboratory(tmp_path / "lab", executor=InThisProcess) as lab:
        rows = lab.carry_out(configs)
        ride = RideAlong(("gammas",), Evenly(2))
        folders = lab.weights(configs, ride_along=ride, keep=tmp_path / "kept")
        recorded = [pd.read_parquet(folder / "probes" / "gammas" / "epoch-0001.parquet") for folder in folders]
        assert [len(table) for table in recorded] == [40, 40]
        assert not ride.tables()
        assert [row.result for row in lab.carry_out(configs)] == [row.result for row in rows]
        assert not (tmp_path / "lab" / "weights").exists()
