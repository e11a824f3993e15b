"""Names in data (recipes, runs, rows, files of results) execute no code that nobody named, and stay in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

import normless as nl
from normless.code_names import TRUST
from normless.errors import UntrustedCodeError
from normless.models._spec import build_model
from normless.saving import Digests, digest_of_values
from normless.saving._folder import seal
from normless_lab.sweeps import RunRow
from normless_lab.sweeps._runs import UnknownKindError
from normless_lab.train import TrainConfig, trained_network
from normless_papers.gamma.pretrained import pretrained
from normless_papers.results import run_file
from normless_papers.results.reproduction import Reproduction, ResultError, folder_of, save
from normless_papers.results.run_file import merged

DENSE = "normless:dense(depth=2, width=8, in_features=4)"
INPUTS = torch.ones(2, 4)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of code, `evil.py`, that leaves a file `ran` when it is executed."""
    (tmp_path / "evil.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
        "from normless.models import dense\nfrom normless.schemes import skipinit as own\n"
        "def net():\n    return dense(depth=2, width=8, in_features=4)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def _ran(folder: Path) -> bool:
    return (folder / "ran").exists()


def _saved(folder: Path, **changes: str) -> Path:
    """A saved network whose recipe names other texts."""
    nl.save(nl.convert(build_model(DENSE), "skipinit", INPUTS), folder / "net", DENSE)
    recipe = folder / "net" / "recipe.json"
    recipe.write_text(json.dumps(json.loads(recipe.read_text()) | changes))
    seal(folder / "net")
    return folder / "net"


def _run(folder: Path, **settings: Any) -> Path:
    """A folder of a run whose configuration names other texts."""
    place = folder / "run"
    place.mkdir()
    config = TrainConfig(model=DENSE, data="gaussian(train=8, test=8)", device="cpu").to_dict()
    (place / "config.yaml").write_text(yaml.safe_dump(config | settings))
    with Digests(place).replaced(place / "checkpoint.pt") as part:
        torch.save({"network": {}}, part)
    return place


def _of_model_text(folder: Path, text: str) -> object:
    (folder / "weights").mkdir()
    (folder / "weights" / "model.txt").write_text(text)
    (folder / "weights" / "state.safetensors").touch()
    return pretrained(str(folder / "weights"), DENSE)


READERS: dict[str, Callable[[Path, str], object]] = {
    "model of a recipe": lambda folder, code: nl.load(_saved(folder, model=f"{code}:net")),
    "scheme of a recipe": lambda folder, code: nl.load(_saved(folder, scheme=f"{code}:own")),
    "edit of a recipe": lambda folder, code: nl.load(_saved(folder, scheme=f"none + {code}:own()")),
    "model of a run": lambda folder, code: trained_network(_run(folder, model=f"{code}:net")),
    "scheme of a run": lambda folder, code: trained_network(_run(folder, scheme=f"{code}:own")),
    "data of a run": lambda folder, code: trained_network(_run(folder, data=f"{code}:net")),
    "model.txt": lambda folder, code: _of_model_text(folder, f"{code}:net"),
}


@pytest.mark.parametrize("code", ["evil.py", "evil"])
@pytest.mark.parametrize("reader", READERS)
def test_code_that_data_name_is_not_executed(reader: str, code: str, hostile: Path) -> None:
    with pytest.raises(UntrustedCodeError, match=f"names code, .*evil.*{TRUST}=1"):
        READERS[reader](hostile, code)
    assert not _ran(hostile)


def test_a_function_of_the_standard_library_and_weights_that_a_library_may_unpickle_are_code(hostile: Path) -> None:
    command = f"subprocess:getoutput(cmd='touch {hostile / 'ran'}')"
    with pytest.raises(UntrustedCodeError):
        nl.load(_saved(hostile, model=command))
    assert not _ran(hostile)
    pytest.importorskip("timm")
    (hostile / "w.pth").write_bytes(b"")
    for argument in ("checkpoint_path='w.pth'", "pretrained_cfg_overlay={'file': 'w.pth'}"):
        with pytest.raises(UntrustedCodeError, match="names weights of timm:resnet18"):
            nl.load(_saved(hostile, model=f"timm:resnet18({argument})"))


ASKING = [
    *("timm:resnet18(pretrained=True)", "timm:resnet18(pretrained_cfg='https://evil.example')"),
    *("torchvision:resnet18(weights='DEFAULT')", "torchvision:fcn_resnet50(weights_backbone='DEFAULT')"),
    "transformers:bert(_attn_implementation='evil/kernel')",
    "transformers:DetrModel(config={'use_pretrained_backbone': True})",
    "transformers:DetrModel(config={'backbone': 'evil/x'})",
    "transformers:TimmWrapperModel(config={'architecture': 'hf-hub:evil/x'})",
    "transformers:TimmWrapperModel(config={'model_args': {'pretrained': True}})",
]


@pytest.mark.parametrize("model", ASKING)
def test_data_that_ask_the_internet_are_refused_by_name(model: str, hostile: Path) -> None:
    with pytest.raises(UntrustedCodeError, match="for which a library asks the internet"):
        nl.load(_saved(hostile, model=model))


def test_a_configuration_of_transformers_names_no_kernels(hostile: Path) -> None:
    pytest.importorskip("transformers")
    (hostile / "c.json").write_text(json.dumps({"model_type": "bert", "attn_implementation": "evil/kernel"}))
    with pytest.raises(UntrustedCodeError, match="attn_implementation='evil/kernel'"):
        build_model("transformers:c.json")


def test_code_of_data_is_executed_for_whom_trusts_it(hostile: Path) -> None:
    folder = _saved(hostile, model="evil.py:net")
    (hostile / "net" / "evil.py").write_text((hostile / "evil.py").read_text())
    nl.load(folder, trust_code=True)
    assert _ran(hostile / "net")


def test_code_that_a_person_named_before_is_executed(hostile: Path) -> None:
    folder = _saved(hostile, scheme=f"{hostile}/evil.py:own")
    nl.scheme("evil.py:own")
    nl.load(folder)
    with pytest.raises(UntrustedCodeError):
        nl.load(_saved(hostile, scheme=f"{hostile}/evil.py:other"))


def _row(**changes: Any) -> dict[str, Any]:
    values = {"hash": "a" * 64, "kind": "train", "config": {"model": DENSE}, "outcome": "trained", "error": None}
    values |= {"result": {"outcome": "trained"}, "seconds": 0.0, "finished_at": "2026-01-01", "machine": "m"}
    return values | {"versions": {}} | changes


@pytest.mark.parametrize("kind", ["evil.py:net", "evil", "normless_lab.sweeps._runs:KINDS"])
def test_the_kind_of_a_row_is_not_imported(kind: str, hostile: Path) -> None:
    row = RunRow(**_row(kind=kind))
    for read in (row.settings, row.report):
        with pytest.raises(UnknownKindError):
            read()
    assert row.columns()["outcome"] == "trained"
    assert not _ran(hostile)


def _artefact(**config: Any) -> dict[str, Any]:
    asked = {"id": "fixup/table-1", "budget": "smoke"}
    return _row(kind="artefact", hash="b", config=asked | config, result=None)


def _written(path: Path, *rows: dict[str, Any]) -> Path:
    """A file as `write_runs` writes it, with right digests."""
    table = pd.DataFrame(rows, columns=[column.name for column in fields(RunRow)])
    for name in ("config", "result", "versions"):
        table[name] = [None if value is None else json.dumps(value) for value in table[name]]
    table["digest"] = [digest_of_values(row) for row in run_file._rows(table)]
    table.to_parquet(path, index=False)
    return path


ASKED = [
    *({"id": id_} for id_ in ("evil.py:net", "../x", ["fixup/table-1"])),
    *({"data": data} for data in ("subprocess:getoutput(cmd='touch ran')", "evil.py:net")),
    *({"budget": "."}, {"weights": "weights"}, {"out": "elsewhere"}),
]


@pytest.mark.parametrize("config", ASKED)
def test_a_file_of_runs_asks_for_published_artefacts_alone(config: dict[str, Any], hostile: Path) -> None:
    path = _written(hostile / "runs.parquet", _artefact(**config))
    with pytest.raises(ResultError, match="asks for an artefact"), run_file.rebuilt(path):
        pass
    assert not _ran(hostile)


@pytest.mark.parametrize(("artefact", "budget"), [("../../away", "smoke"), ("fixup/table-1", "../../../..")])
def test_results_stay_in_their_folder(artefact: str, budget: str, hostile: Path) -> None:
    (hostile / "away").mkdir()
    (hostile / "away" / "result.json").write_text("mine")
    result = Reproduction(artefact, budget, {}, entry=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="outside of it"):
        save(result, None, hostile / "out")
    path = _written(hostile / "runs.parquet", _artefact() | {"result": {"id": artefact}})
    with pytest.raises(ResultError), run_file.rebuilt(path):
        pass
    assert (hostile / "away" / "result.json").read_text() == "mine"


def test_links_lead_out_of_a_folder_and_names_of_folders_are_not_executed(hostile: Path) -> None:
    (hostile / "away").mkdir()
    (hostile / "artefacts" / "fixup").mkdir(parents=True)
    (hostile / "artefacts" / "fixup" / "table-1").symlink_to(hostile / "away")
    with pytest.raises(ValueError, match="outside of it"):
        folder_of(hostile, "fixup/table-1", "smoke")
    for name in ("one", "other"):
        place = hostile / name / "artefacts" / "evil.py:net" / "x" / "smoke"
        place.mkdir(parents=True)
        values = {"id": "evil.py:net/x", "budget": "smoke", "format": 3}
        (place / "result.json").write_text(json.dumps(values | {"digest": digest_of_values(values)}))
    with pytest.raises(ResultError), merged([hostile / "one", hostile / "other"]):
        pass
    assert not _ran(hostile)
