"""Weights that a person has: read, given a classifier, and trained further with L2 by role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from papers_helpers import DATA, InThisProcess, folder_with
from safetensors.torch import save_file
from torch import nn

import normless as nl
from normless_lab.data import Augmentation, load_data
from normless_lab.sweeps import Laboratory, RateGrid
from normless_papers.artefact import artefact_of
from normless_papers.experiments.effort import Effort
from normless_papers.gamma.course import COLUMNS, Course
from normless_papers.gamma.pretrained import fitted, networks_in, pretrained
from normless_papers.results.reproduce import reproduce

EFFORT = Effort(
    data=DATA,
    epochs=1,
    batch_size=16,
    crop=0,
    rates=RateGrid((0.1,), None),
    replicates=1,
    settings={"schedule": "constant", "weight_decay": 0.1, "precision": "64-true"},
    variants={"resnet_18": {"model": "normless:resnet(depth=18, channels=4)"}},
    reduced="ResNet-18 with 4 channels.",
    further={"rates": [0.05]},
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of the result of the command."""
    out = tmp_path_factory.mktemp("out")
    mine = folder_with(out / "my_network")
    with pytest.MonkeyPatch.context() as patch, Laboratory(out / "laboratory", executor=InThisProcess) as lab:
        patch.setitem(artefact_of("gamma/table-2").settings, "smoke", {"effort": EFFORT})
        reproduced = reproduce("gamma/table-2", "smoke", out=out, data=DATA, weights=str(mine), laboratory=lab)
        assert not reproduced.error, reproduced.error
        yield out / "artefacts" / "gamma" / "table-2" / "smoke" / "files"


def tables_of(result: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of the γ of each layer and of the stream after each block."""
    gammas, stream = (pd.read_csv(result / f"{name}.csv") for name in ("gammas", "stream"))
    return gammas, stream


def test_the_records_are_those_of_a_loop_of_ones_own(result: Path) -> None:
    """SGD with momentum and L2 on W and γ_down written out, from the saved network; seed 0."""
    network = nl.load(result / "pretrained" / "my_network").double().train()
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
    gammas, stream = (table[(table["l2"] == "gamma_down") & (table["seed"] == 0)] for table in tables_of(result))
    squares = gammas[gammas["role"] == "down"].set_index("step")["gamma_norm"] ** 2
    assert (squares.groupby("step").sum() ** 0.5).to_numpy() == pytest.approx(norms, rel=1e-9)
    assert norms[-1] < 0.9 * norms[0]
    variances = [float(output.var((0, 2, 3), correction=0).mean()) for output in outputs]
    assert stream[stream["name"] == "layer2.0"]["variance"].to_numpy() == pytest.approx(variances, rel=1e-9)


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


def test_checks_hold_as_the_paper_has_it_and_fail_on_the_opposite() -> None:
    for right, verdict in ((True, "holds"), (False, "fails")):
        assert [own.verdict for own in made_up(right).checks()] == [verdict] * 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with(tmp_path_factory.mktemp("mine") / "my_network")


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
    assert networks_in(str(saved)) == {"saved": str(saved)}


@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_state_dicts_are_named_after_the_papers_networks(form: str, tmp_path: Path) -> None:
    """As in torchvision's cache; its own network is the oracle."""
    torchvision = pytest.importorskip("torchvision")
    theirs = torchvision.models.resnet18(num_classes=7).eval()
    file = tmp_path / f"resnet18-f37072fd.{form}"
    # Files of old versions have no counters.
    state = {key: value for key, value in theirs.state_dict().items() if "num_batches" not in key}
    save_file(state, file) if form == "safetensors" else torch.save(state, file)
    assert networks_in(str(tmp_path)) == {"resnet_18": str(file)}
    text, mine = pretrained(str(tmp_path), "")
    images = torch.randn(2, 3, 64, 64)
    assert text == "normless:resnet(depth=18, classes=7)"
    assert torch.allclose(mine.eval()(images), theirs(images), atol=1e-5)
    (tmp_path / "wide_resnet50_2-9ba9bcbd.pth").touch()
    assert set(networks_in(str(tmp_path))) == {"resnet_18", "wide_resnet_50_2"}
