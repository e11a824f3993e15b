"""`normless diagnose --optimizer`: any class of torch.optim by name."""

from __future__ import annotations

import pytest
from torch import optim

from normless.cli import main

MODEL = "normless:resnet_cifar(depth=8)"


@pytest.mark.parametrize(
    ("text", "kind", "settings"),
    [
        ("AdamW(lr=1e-3, weight_decay=0.05)", optim.AdamW, {"lr": 1e-3, "decays": {0.0, 0.05}}),
        ("SGD(lr=0.5, momentum=0.8, nesterov=True)", optim.SGD, {"lr": 0.5, "momentum": 0.8, "decays": {0.0}}),
        ("RAdam", optim.RAdam, {"lr": 1e-3, "decays": {0.0}}),
    ],
)
def test_the_optimizer_is_built_on_the_groups_of_the_policy(
    text: str, kind: type[optim.Optimizer], settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[optim.Optimizer] = []

    def note(*_: object, optimizer: optim.Optimizer, **__: object) -> None:
        given.append(optimizer)
        raise ValueError("enough")

    monkeypatch.setattr("normless.diagnosis.diagnose", note)
    assert main(["diagnose", MODEL, "--batch-size", "2", "--optimizer", text]) == 2
    (optimizer,) = given
    assert type(optimizer) is kind
    decays = {group["weight_decay"] for group in optimizer.param_groups}
    assert decays == settings.pop("decays")
    assert all(group.items() >= settings.items() for group in optimizer.param_groups)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--optimizer", "AdmaW"], "AdamW"),
        (["--optimizer", "AdamW(rate=1)"], "rate"),
        (["--optimizer", "AdamW(lr='fast')"], "lr"),
        (["--optimizer", "AdamW", "--rate", "0.1"], "both"),
    ],
)
def test_what_is_no_optimizer_is_told(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", MODEL, "--batch-size", "2", *words]) == 2
    assert said in capsys.readouterr().err
