"""A `config.yaml` that was edited is told, before a run goes on or a result is returned by other settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from run_helpers import Interrupt

from normless_lab.train import RunDirectoryError, TrainConfig, train, trained_network

CONFIG = TrainConfig(
    model="normless:dense(depth=2, width=8)",
    scheme="skipinit",
    data="digits(train=64, test=32)",
    batch_size=32,
    epochs=2,
    schedule="constant",
    device="cpu",
)
EDITS: list[dict[str, Any]] = [{"scheme": "none"}, {"rate": 0.05}, {"seed": 3}, {"epochs": 4}, {"flip": True}]


def _interrupted(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, folder, listeners=[Interrupt(3)])


@pytest.mark.parametrize("begin", [lambda folder: train(CONFIG, folder), _interrupted], ids=["finished", "begun"])
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: next(iter(edit)))
def test_a_run_does_not_go_on_by_settings_that_were_edited(begin: Any, edit: dict[str, Any], tmp_path: Path) -> None:
    begin(tmp_path)
    file = tmp_path / "config.yaml"
    written = file.read_text()
    file.write_text(yaml.safe_dump(yaml.safe_load(written) | edit))
    for config in (TrainConfig(**yaml.safe_load(file.read_text())), CONFIG):
        with pytest.raises(RunDirectoryError, match=r"config\.yaml was edited"):
            train(config, tmp_path)
    file.write_text(written)
    assert train(CONFIG, tmp_path).config_hash == CONFIG.hash


def test_the_place_of_the_data_and_comments_are_no_settings_of_a_run(tmp_path: Path) -> None:
    first = train(CONFIG, tmp_path)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"data_root": "elsewhere"}) + "# by hand\n")
    assert train(CONFIG, tmp_path) == first


def test_a_run_that_is_lengthened_has_settings_of_its_own(tmp_path: Path) -> None:
    _interrupted(tmp_path)
    longer = replace(CONFIG, epochs=3)
    assert len(train(longer, tmp_path).epochs) == 3
    assert train(longer, tmp_path).config_hash == longer.hash
    assert trained_network(tmp_path).training is False
