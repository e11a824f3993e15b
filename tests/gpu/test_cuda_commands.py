"""Commands on the card: one process each, so few of them, and small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cuda_helpers import DEVICE, NEEDS_CARD, NETWORK, losses_of, normless_command, run, with_flag, written

pytestmark = NEEDS_CARD

RUN = ["--data", "digits(train=200, test=50)", "--batch-size", "32", "--model", NETWORK, "--scheme", "skipinit"]


def answered(*arguments: str, code: int = 0) -> dict[str, object]:
    """The object that a command prints with `--json`, and nothing else."""
    ended = normless_command(*arguments, "--json")
    assert ended.returncode == code, ended.stderr[-2000:]
    return json.loads(ended.stdout)


def test_a_run_is_stopped_at_its_limit_goes_on_and_is_that_of_python(tmp_path: Path) -> None:
    command = ["train", *RUN, "--epochs", "3", "--rate", "0.05", "--precision", "64-true", "--dropout", "0.5"]
    command += ["--device", DEVICE, "--out", str(tmp_path / "run"), *with_flag("train", "--graph", "auto")]
    stopped = normless_command(*command, "--time-limit", "0.001s")
    assert stopped.returncode == 75, stopped.stderr[-2000:]
    result = answered(*command)
    whole = run(tmp_path / "whole", epochs=3, dropout=0.5)
    assert result["steps"] == 18
    assert losses_of(tmp_path / "run") == pytest.approx(whole.losses, rel=1e-7)
    # The page reads the files alone.
    assert answered("watch", str(tmp_path / "run"))


def test_an_unknown_choice_of_graph_is_told_in_a_sentence(tmp_path: Path) -> None:
    ended = normless_command("train", *RUN, "--graph", "sometimes", "--out", str(tmp_path / "run"))
    assert ended.returncode == 2
    assert "graph" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_error_within_a_captured_step_is_that_of_the_network(tmp_path: Path) -> None:
    """The users' own line is told, and no error of a capture that it ended."""
    net = written(
        tmp_path,
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.head, self.calls = nn.Linear(64, 10), 0\n\n    def forward(self, x):\n"
        "        self.calls += self.training\n        if self.calls == 4:\n"
        "            raise OverflowError('my own error')\n        return self.head(x.flatten(1))\n\n\n"
        "def net():\n    return Net()\n",
    )
    command = ["train", *RUN[:4], "--model", f"{net}:net", "--scheme", "as_written", "--decay-policy", "all"]
    ended = normless_command(*command, "--device", DEVICE, "--epochs", "2", "--out", str(tmp_path / "run"))
    assert ended.returncode == 1
    assert "my own error" in ended.stderr.splitlines()[-1]


def test_a_sweep_on_the_card_has_a_page(tmp_path: Path) -> None:
    base = {"model": NETWORK, "data": "digits(train=128)", "epochs": 1, "device": DEVICE}
    sweep = {"name": "small", "base": base, "axes": {"scheme": ["skipinit", "batch_norm"]}, "rates": [0.05]}
    (tmp_path / "small.yaml").write_text(json.dumps(sweep | {"replicates": 1}))
    shown = answered("sweep", "run", str(tmp_path / "small.yaml"), "--page", "--out", str(tmp_path / "lab"))
    assert [row["scheme"] for row in shown["optima"]] == ["skipinit", "batch_norm"]  # type: ignore[attr-defined]
    assert Path(shown["files"][-1]).exists()  # type: ignore[index]


def test_the_benchmark_of_a_step_on_the_card() -> None:
    asked = f"bench step --depth 8 --batch-size 8 --image-size 8 --rounds 1 --device {DEVICE}"
    shown = json.dumps(answered(*asked.split()))
    assert "skipinit" in shown
    assert "NaN" not in shown


def test_an_artefact_that_trains_is_reproduced_on_the_card(tmp_path: Path) -> None:
    asked = "reproduce fixup/rule-2 --budget smoke --workers 1 --json --out"
    ended = normless_command(*asked.split(), str(tmp_path / "results"), timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)
