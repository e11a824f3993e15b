"""Figure 5, table 2 and the λ sweep of a network that the user has, here one trained in the test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from papers_helpers import carried_out
from torch import nn

import normless as nl
from normless.models import build_model
from normless_lab.data import Augmentation, load_data
from normless_lab.sweeps import RateGrid
from normless_papers.artefact import Context
from normless_papers.experiments.effort import Effort
from normless_papers.gamma.pretrained import WeightsError, fitted, pretrained

MODEL = "normless:resnet(depth=18, channels=4, in_channels=1, classes=7)"
DATA = "digits(train=128, test=100)"
EFFORT = Effort(
    data=DATA,
    epochs=2,
    batch_size=64,
    rates=RateGrid((0.01,), None),
    settings={"schedule": "cosine", "weight_decay": 0.01},
    variants={"resnet_18": {"model": "normless:resnet(depth=18, channels=4)"}},
    reduced="ResNet-18 with 4 channels.",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of seven classes, trained for some steps, as a user has it: a text and a state dict."""
    torch.manual_seed(0)
    network, data = build_model(MODEL), load_data(DATA)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for batch in data.train_batches(32, seed=0, epoch=0, augmentation=Augmentation()):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(batch.inputs), batch.targets % 7).backward()
        optimizer.step()
    path = tmp_path_factory.mktemp("mine") / "my_network"
    path.mkdir()
    (path / "model.txt").write_text(MODEL + "\n")
    torch.save(network.state_dict(), path / "weights.pt")
    return path


def test_a_new_classifier_leaves_every_other_weight(folder: Path, tmp_path: Path) -> None:
    _, mine = pretrained(str(folder), "")
    saved = fitted(str(folder), "", load_data(DATA), tmp_path / "saved")
    own, given = nl.load(saved).state_dict(), mine.state_dict()
    new = [name for name in own if own[name].shape != given[name].shape]
    assert {name.rpartition(".")[0] for name in new} == {nl.residual_map(mine, torch.zeros(2, 1, 8, 8)).classifier}
    assert own[new[0]].shape[0] == 10
    assert all(torch.equal(own[name], given[name]) for name in own if name not in new)
    # A folder of normless is read as well.
    text, again = pretrained(str(saved), "")
    assert "resnet" in text
    assert all(torch.equal(value, own[name]) for name, value in again.state_dict().items())


def test_weights_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="Only the classifier may be new"):
        fitted(str(folder), "", load_data("correlated(image_shape=(3, 16, 16), train=8, test=8)"), tmp_path)
    with pytest.raises(WeightsError, match="state dict"):
        pretrained(str(tmp_path), "")
    (tmp_path / "model.txt").write_text(MODEL.replace("channels=4", "channels=8"))
    torch.save(pretrained(str(folder), "")[1].state_dict(), tmp_path / "w.pt")
    with pytest.raises(WeightsError, match="does not fit"):
        pretrained(str(tmp_path), "")


def test_figure_5_of_the_users_network_has_both_variances(folder: Path, context: Context) -> None:
    mine = replace(context, weights=str(folder))
    evidence = carried_out("gamma/figure-5", mine, data=DATA, examples=64)
    table = evidence.measured
    assert len(table) == 8
    assert (table["pooled_variance"] > table["variance"]).all()
    _, network = pretrained(str(folder), "")
    outputs: list[torch.Tensor] = []
    network.get_submodule("layer1.0").register_forward_hook(lambda _, inputs, output: outputs.append(output))
    images = next(iter(load_data(DATA).test_batches(64))).inputs
    with torch.no_grad():
        network.train()(images)
    own = outputs[0].double().numpy()
    assert table["variance"].iloc[0] == pytest.approx(own.var((0, 2, 3)).mean(), rel=1e-3)
    assert table["pooled_variance"].iloc[0] == pytest.approx(own.var(), rel=1e-3)


@pytest.mark.parametrize(("artefact", "runs"), [("gamma/table-2", 7), ("gamma/figure-3", 4)])
def test_it_is_trained_further_with_gammas_and_variances_recorded(
    artefact: str, runs: int, folder: Path, context: Context
) -> None:
    mine = replace(context, weights=str(folder))
    changes: dict[str, Any] = {} if artefact == "gamma/table-2" else {"strengths": (0.0001, 0.5), "model": ""}
    evidence = carried_out(artefact, mine, effort=EFFORT, **changes)
    assert len(evidence.checks) > 0
    stream, gammas = (pd.read_csv(context.directory / f"{name}.csv") for name in ("stream", "gammas"))
    assert stream["run"].nunique() == gammas["run"].nunique() == runs
    assert np.isfinite(stream[["variance", "pooled_variance"]]).all(axis=None)
    assert set(gammas["role"]) == {"stem", "last", "down", "other"}
    # The first record is of the weights as they came.
    _, network = pretrained(str(folder), "")
    start = gammas[(gammas["step"] == 1) & (gammas["layer"] == "bn1")]["gamma_norm"]
    assert start.to_numpy() == pytest.approx(float(network.get_parameter("bn1.weight").detach().norm()))
