"""`normless train-text`: flags, YAML, what it prints and where it leaves the run."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from text_helpers import written

from normless.cli import main
from normless_lab.train import TextConfig

configs = st.builds(
    TextConfig,
    scheme=st.sampled_from(["as_written", "layer_norm", "skipinit(alpha=1)"]),
    batch_size=st.integers(1, 10**5),
    longest=st.integers(3, 10**4),
    rate=st.floats(1e-12, 1e6),
    warmup=st.floats(0, 0.99),
    clip=st.none() | st.floats(1e-6, 10),
    decay_policy=st.sampled_from(["all", "weights+last"]),
    seed=st.integers(0, 2**40),
)


@given(configs)
def test_text_configs_survive_yaml_and_json(config: TextConfig) -> None:
    assert TextConfig.from_dict(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config
    again = TextConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert (again, again.hash) == (config, config.hash)


@pytest.mark.parametrize("field", [field.name for field in fields(TextConfig)])
def test_the_hash_depends_on_every_setting_but_the_place(field: str) -> None:
    other: dict[str, Any] = {
        "model": "transformers:gpt2",
        "scheme": "fixup",
        "data": "sst2",
        "data_root": "elsewhere",
        "micro_batch_size": 8,
        "schedule": "cosine",
        "decay_policy": "all",
        "precision": "bf16-mixed",
        "device": "cpu",
        "recompute": "auto",
        "strategy": "fsdp2",
        "decoupled_decay": False,
        "devices": 2,
    }
    kind = type(getattr(TextConfig(), field))
    changed = replace(TextConfig(), **{field: other.get(field, 7 if kind is int else 0.25)})
    assert (changed.hash == TextConfig().hash) == (field in ("data_root", "device", "recompute", "strategy"))


SENTENCES = [
    ({"longest": 2}, "Expected longest 3 or more, got 2"),
    ({"warmup": 1.0}, r"Expected warmup in \[0, 1\), got 1\.0"),
    ({"clip": 0.0}, "Expected clip above 0"),
    ({"schedule": "polynomial"}, "Expected schedule to be one of hold_then_halve, step, cosine, linear, constant"),
    ({"batch_size": 5, "devices": 2}, "A batch of batch_size=5 cannot be shared evenly by devices=2"),
    ({"batch_size": 8, "micro_batch_size": 9}, "Expected micro_batch_size to be at most the 8 examples"),
    ({"batch_tokens": 5}, "A training run has no setting batch_tokens; it has model, scheme, data"),
]


@pytest.mark.parametrize(("values", "sentence"), SENTENCES)
def test_every_mistake_in_a_text_config_has_its_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TextConfig.from_dict(values)


def test_a_text_run_has_a_place_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train-text", "--model", f"{written(tmp_path)}:words", "--data", "sentiment(train=64, test=20)"]
    words += ["--vocabulary", "250", "--epochs", "1", "--device", "cpu", "--scheme", "skipinit(alpha=1)"]
    assert main([*words, "--probes", "signal"]) == 0
    (directory,) = (tmp_path / "runs").iterdir()
    assert directory.name.rpartition("-")[0] == "sentiment-skipinit"
    assert list((directory / "probes" / "signal").iterdir())
    assert "epoch 1/1" in capsys.readouterr().err
