"""``normless convert`` saves a converted network and says what it changed; ``normless inspect`` reads it back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_outputs import check_output

import normless as nl
from normless.cli import main
from normless.models import resnet_cifar

Capture = pytest.CaptureFixture[str]
CIFAR = "normless:resnet_cifar(depth=8)"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def said(capsys: Capture, *words: str) -> dict[str, Any]:
    """The JSON object that a command prints."""
    assert main([*words, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    check_output(words[0], printed)
    return printed


@pytest.mark.slow
def test_fixup_of_resnet50_has_the_published_counts_and_is_read_back(tmp_path: Path, capsys: Capture) -> None:
    facts = said(capsys, "convert", "torchvision:resnet50", "--scheme", "fixup", "--out", str(tmp_path))
    assert facts["parameters"] == {"before": 25_557_032, "after": 25_504_026}
    assert (facts["multipliers"], facts["scalar_biases"], facts["norms_left"]) == (16, 98, [])
    # 16 branches of 3 layers: L^(-1/(2m - 2)) = 16^(-1/4).
    assert facts["changes"]["RescaleBranches(gain=1.0)"] == {"count": 48, "what": {"weight × 0.5": 48}}
    assert facts["input"] == [2, 3, 224, 224]
    assert facts["files"] == [str(tmp_path / "model.safetensors"), str(tmp_path / "recipe.json")]
    read = said(capsys, "inspect", str(tmp_path), "--image", "3", "64", "64")
    assert (read["converted_by"], read["depth"], read["unresolved"], read["schemes"]) == ("fixup", 16, [], {})
    assert read["totals"]["norms_by_role"] == {}
    sizes = {group["name"]: (group["tensors"], group["parameters"]) for group in read["totals"]["parameters"]}
    assert sizes["scalars"] == (114, 114)
    assert sum(parameters for _, parameters in sizes.values()) == 25_504_026


def test_the_text_tells_the_edits_the_counts_and_the_files(tmp_path: Path, capsys: Capture) -> None:
    assert main(["convert", CIFAR, "--scheme", "skipinit", "--out", str(tmp_path / "net")]) == 0
    lines = capsys.readouterr().out.splitlines()
    before = sum(parameter.numel() for parameter in resnet_cifar(8).parameters())
    after = sum(parameter.numel() for parameter in nl.convert(resnet_cifar(8), "skipinit").parameters())
    scaled = " ".join(lines.pop(3).split())
    assert re.match(r"KeepScale\(weights='fresh'\) 7 weight × \d\.\d+: second moment 1 of its output; ", scaled)
    assert [" ".join(line.split()) for line in lines] == [
        "normless:resnet_cifar(depth=8, in_channels=3), converted by skipinit, input 2×3×32×32",
        "",
        "edit changes what",
        "RemoveNorms() 7 3 × batch norm 16 removed; 2 × batch norm 32 removed; 2 × batch norm 64 removed",
        "BranchMultiplier(init=0.0) 3 3 × multiplier at the end of the branch, initially 0",
        "",
        f"{before:,} parameters before, {after:,} after: 3 multipliers, 0 scalar biases",
        "norms left: none",
        "",
        f"wrote {tmp_path / 'net' / 'model.safetensors'}",
        f"wrote {tmp_path / 'net' / 'recipe.json'}",
    ]


def test_inspect_says_what_a_folder_was_converted_by(tmp_path: Path, capsys: Capture) -> None:
    assert main(["convert", CIFAR, "--scheme", "fixup", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path), "--eval"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path}, converted by fixup, input 2×3×32×32, eval mode"
    assert not any("would change" in line for line in lines)
    assert main(["inspect", str(tmp_path), "--schemes", "skipinit"]) == 0
    assert "was converted by 'fixup' already" in capsys.readouterr().out
    assert said(capsys, "inspect", CIFAR, "--schemes")["converted_by"] is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([CIFAR, "--scheme", "fixupp"], "There is no scheme 'fixupp'"),
        (["resnet50", "--scheme", "fixup"], "FILE.py:FUNCTION or the folder of a saved network, got 'resnet50'"),
        ([CIFAR, "--scheme", "fixup", "--image", "3", "0", "8"], "got 3 0 8"),
        ([CIFAR], "scheme"),
        (["normless:dense(depth=1)", "--scheme", "zeroinit_v1"], "no residual sum is followed by an activation"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    words: list[str], expected: str, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["convert", *words, "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_saved_network_is_not_converted_again(tmp_path: Path, capsys: Capture) -> None:
    assert main(["convert", CIFAR, "--scheme", "skipinit", "--out", str(tmp_path / "one")]) == 0
    capsys.readouterr()
    assert main(["convert", str(tmp_path / "one"), "--scheme", "fixup", "--out", str(tmp_path / "two")]) == 2
    assert "was converted by 'skipinit' already" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()
