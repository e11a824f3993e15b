"""`normless train-translation`: flags, YAML, what it prints and where it leaves the run."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_outputs import check_output

from normless.cli import main
from normless_lab.train import TranslationConfig, TranslationResult, train

FLAGS = [
    *("--model", "normless:transformer(layers=1, width=16, heads=2, feed_forward=16, norm='pre')"),
    *("--data", "grammar(train=40, validation=3, test=3)", "--vocabulary", "100", "--batch-tokens", "900"),
    *("--epochs", "1", "--warmup-steps", "1", "--longer-by", "2", "--beam-width", "2", "--device", "cpu"),
]


@pytest.mark.parametrize("field", [field.name for field in fields(TranslationConfig)])
def test_the_hash_depends_on_every_setting_but_the_place(field: str) -> None:
    other: dict[str, Any] = {
        "model": "normless:transformer(layers=2)",
        "scheme": "fixup",
        "data": "multi30k",
        "data_root": "elsewhere",
        "source": "de",
        "target": "en",
        "longest": 100,
        "micro_batch_tokens": 100,
        "schedule": "cosine",
        "decay_policy": "all",
        "precision": "bf16-mixed",
        "device": "cpu",
        "recompute": "auto",
        "decoupled_decay": True,
        "bleu_every": 2,
        "devices": 2,
    }
    kind = type(getattr(TranslationConfig(), field))
    changed = replace(TranslationConfig(), **{field: other.get(field, 7 if kind is int else 0.25)})
    assert (changed.hash == TranslationConfig().hash) == (field in ("data_root", "device", "recompute"))


SENTENCES = [
    ({"beam_width": 0}, "Expected beam_width 1 or more, got 0"),
    ({"warmup_steps": -1}, "Expected warmup_steps 0 or more, got -1"),
    ({"beta2": 1.0}, r"Expected beta2 in \[0, 1\), got 1\.0"),
    ({"clip": 0.0}, "Expected clip above 0"),
    ({"schedule": "polynomial"}, "Expected schedule to be one of inverse_square_root, hold_then_halve"),
    ({"epochs": 1.5}, r"Expected epochs to be a whole number, got 1\.5"),
    ({"source": "de", "target": "de"}, "source and target are both 'de'"),
    ({"longest": 2000}, "A sentence of longest=2000 tokens does not fit into a batch of batch_tokens=512"),
    ({"micro_batch_tokens": 2000}, "Expected micro_batch_tokens to be at most the batch_tokens=512 of a batch, got"),
    ({"batch_size": 5}, "A training run has no setting batch_size; it has model, scheme, data"),
]


@pytest.mark.parametrize(("values", "sentence"), SENTENCES)
def test_every_mistake_in_a_translation_config_has_its_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TranslationConfig.from_dict(values)


def test_it_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train-translation", *FLAGS, "--out", str(tmp_path / "run")]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    check_output("train-translation", printed)
    assert printed.pop("directory") == str(tmp_path / "run")
    result = TranslationResult.from_dict(printed)
    config = TranslationConfig.from_dict(yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()))
    assert config.batch_tokens == 900
    assert train(config, tmp_path / "run") == result  # it is the stored one

    assert main([*words, "--rate", "0.5"]) == 2
    assert "holds another run: rate is 0.003 there and 0.5 here" in capsys.readouterr().err
    assert main(["train-translation", "--config", str(tmp_path / "run" / "config.yaml"), "--out", words[-1]]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{result.test_bleu_greedy:.2f} greedy, {result.test_bleu_beam:.2f} by beam search (nrefs:1|" in shown
    assert result.outcome in shown
