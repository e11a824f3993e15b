"""A mistake in a command is told in one line, before any work, and leaves no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from normless.cli import main

NETS = """import torch
from torch import nn

def scores():
    return nn.Flatten(0), torch.ones(2, 4)

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def batches():
    return [(torch.randn(16, 1, 8, 8), torch.arange(16) % 10)]

def number():
    return 3
"""
CIFAR, WIDE = "normless:resnet_cifar(depth=8)", "normless:wide_resnet(depth=10,width=1)"
TRAINED = "diagnose nets.py:net --trained --inputs nets.py:batches"
MISTAKES = [
    (f"convert {CIFAR} --scheme fixupp --out out", "There is no scheme 'fixupp'"),
    (
        "convert resnet50 --scheme fixup --out out",
        "or the folder of a saved network, got 'resnet50'",
    ),
    ("inspect normless:dense(depth=1) --schemes fixupp", "There is no scheme 'fixupp'"),
    ("inspect nowhere.py:model --figure out.jpg", "Expected --figure to end in .svg, .png, .pdf, got"),
    (f"probe {WIDE} --probes signals", "There is no probe 'signals'. Did you mean signal? The probes are"),
    ("probe nets.py:scores", "Expected logits of shape (…, classes) from Flatten, got (128,)"),
    (f"diagnose {WIDE} --data letters", "There is no data set 'letters'"),
    (f"diagnose {WIDE} --rate 0.1 --decay-policy some", "There is no decay policy 'some'"),
    (f"diagnose {CIFAR} --batch-size 2 --optimizer AdmaW", "AdamW"),
    (f"diagnose {CIFAR} --batch-size 2 --optimizer AdamW --rate 0.1", "both"),
    ("diagnose nets.py:net --trained", "--inputs FILE.py:FUNCTION that returns batches"),
    ("diagnose nets.py:net --trained --inputs nets.py:number", "to return batches, a list or DataLoader"),
    (f"{TRAINED} --rate 0.1", "--rate without --trained"),
    ("diagnose nowhere.py:net --baseline known.json", "There is no file known.json; --write-baseline writes it."),
    ("diagnose nowhere.py:net --write-baseline", "Expected --baseline FILE"),
]


@pytest.mark.parametrize(("command", "said"), MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(
    command: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"nets.py", "__pycache__"}
