"""`normless train --task translation`: what it prints and stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from command_outputs import check_output

from normless.cli import main
from normless_lab.train import train
from normless_papers.text.config import TranslationConfig, TranslationResult

PAIRS = {
    "model": "normless:transformer(layers=1, width=16, heads=2, feed_forward=16, norm='pre')",
    "data": "grammar(train=40, validation=3, test=3)",
    "vocabulary": 100,
    "batch_tokens": 900,
    "epochs": 1,
    "warmup_steps": 1,
    "longer_by": 2,
    "beam_width": 2,
    "device": "cpu",
}


def test_a_translation_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [word for name, value in PAIRS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words = ["train", "--task", "translation", *flags, "--out", str(tmp_path / "run")]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    check_output("train-translation", printed)
    assert printed.pop("directory") == str(tmp_path / "run")
    result = TranslationResult.from_dict(printed)
    config = TranslationConfig.from_dict(yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()))
    assert config == TranslationConfig.from_dict(PAIRS)
    assert train(config, tmp_path / "run") == result  # it is the stored one
