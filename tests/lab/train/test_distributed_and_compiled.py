"""Two processes that share every batch train as one does, and so does the compiled network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from run_helpers import two_processes
from text_helpers import BERT

from normless_lab.train import RunConfig, TextConfig, TrainConfig, TranslationConfig, train, trained_network
from normless_lab.train.run_files import load_weights

CONFIG = TrainConfig(
    model="normless:wide_resnet(depth=10, width=1)",
    scheme="skipinit(alpha=1)",
    batch_size=300,
    micro_batch_size=100,
    epochs=1,
    mixup=0.3,
    precision="64-true",
    device="cpu",
)


# Of the last batch, one sentence, the second process has none.
SENTENCES = TextConfig(
    model=BERT.replace(")", ", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)"),
    data="sentiment(train=97, test=21)",
    vocabulary=250,
    micro_batch_size=10,
    epochs=1,
    precision="64-true",
    device="cpu",
)
# Processes have different numbers of tokens, and in one batch the second has no sentence.
PAIRS = TranslationConfig(
    model="normless:transformer(layers=1, width=16, heads=2, feed_forward=16, dropout=0.0)",
    data="grammar(train=60, validation=5, test=7)",
    vocabulary=120,
    batch_tokens=300,
    micro_batch_tokens=100,
    epochs=1,
    warmup_steps=2,
    longer_by=3,
    clip=0.5,
    precision="64-true",
    device="cpu",
)


def weights(directory: Path) -> dict[str, torch.Tensor]:
    """Those of the checkpoint."""
    return load_weights(directory / "checkpoint.pt")


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [CONFIG, SENTENCES, replace(SENTENCES, micro_batch_size=None, strategy="fsdp2"), PAIRS],
    ids=["images", "text", "sharded text", "translation"],
)
def test_two_processes_are_one(tmp_path: Path, config: RunConfig) -> None:
    kind = type(config).__name__
    done = two_processes(
        "import sys\n"
        f"from normless_lab.train import {kind}, train\n"
        f"train({kind}.from_dict({replace(config, devices=2).to_dict()!r}), sys.argv[1])\n",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    one: Any = train(config, tmp_path / "one")  # type: ignore[call-overload]
    two = json.loads((tmp_path / "two" / "result.json").read_text())
    expected = one.to_dict()
    for actual, wanted in ((two.pop("epochs")[0], expected.pop("epochs")[0]), (two, expected)):
        for name, value in wanted.items():
            if isinstance(value, float) and "seconds" not in name:
                assert actual[name] == pytest.approx(value, rel=1e-7), name
    assert two["steps"] == one.steps
    steps = [pd.read_parquet(tmp_path / name / "steps.parquet")["loss"] for name in ("one", "two")]
    assert steps[1].tolist() == pytest.approx(steps[0].tolist(), rel=1e-9)
    for name, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(value, weights(tmp_path / "two")[name], rtol=1e-7, atol=1e-9)
    if config is PAIRS:
        texts = [(tmp_path / name / "translations.txt").read_text() for name in ("one", "two")]
        assert texts[0] == texts[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compiled_is_not_another_network(tmp_path: Path) -> None:
    config = replace(CONFIG, precision="32-true", micro_batch_size=None)
    compiled = train(replace(config, compile=True), tmp_path / "compiled")
    plain = train(config, tmp_path / "plain")
    assert compiled.epochs[0].training_loss == pytest.approx(plain.epochs[0].training_loss, rel=1e-4)
    states = [trained_network(tmp_path / name).state_dict() for name in ("compiled", "plain")]
    assert list(states[0]) == list(states[1])
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-3, atol=1e-4)
