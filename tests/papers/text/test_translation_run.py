"""Whole translation runs on a few sentences of the grammar: outcomes, resuming, files."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
import yaml
from run_helpers import Interrupt, assert_same_run, without_seconds

from normless.probes import RideAlong
from normless.probes.measure import every
from normless_lab.data.byte_pairs import BytePairs
from normless_lab.train import (
    RunDirectoryError,
    TrainConfig,
    TranslationConfig,
    TranslationResult,
    train,
    trained_translator,
)
from normless_lab.train.decoding import bleu, translate

STEPS = 6
CONFIG = TranslationConfig(
    model="normless:transformer(layers=1, width=32, heads=2, feed_forward=32, dropout=0.2)",
    data="grammar(train=60, validation=5, test=6)",
    vocabulary=120,
    batch_tokens=600,
    epochs=3,
    rate=3e-3,
    warmup_steps=2,
    longer_by=5,
    beam_width=2,
    bleu_every=2,
    device="cpu",
)
SAME: dict[str, Any] = {
    "epochs": CONFIG.epochs,
    "moments": {"step", "exp_avg", "exp_avg_sq"},
    "files": ("vocabulary.json", "translations.txt"),
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TranslationResult]:
    directory = tmp_path_factory.mktemp("uninterrupted")
    return directory, train(CONFIG, directory)


def test_a_run_learns_and_reports(uninterrupted: tuple[Path, TranslationResult]) -> None:
    directory, result = uninterrupted
    losses = [row.training_loss for row in result.epochs]
    assert losses == sorted(losses, reverse=True)
    assert [row.validation_bleu is None for row in result.epochs] == [True, False, False]
    assert result.steps == 3 * STEPS
    assert [row.rate for row in result.epochs] == pytest.approx([3e-3 * (2 / step) ** 0.5 for step in (6, 12, 18)])
    assert result.validation_loss == result.epochs[-1].validation_loss
    assert result.bleu_signature.startswith("nrefs:1|case:mixed|")
    assert "grammar, en to de" in result.data
    assert result.data_checksum.startswith(result.data.partition("sha256 ")[2][:12])
    assert result.versions["torch"] == torch.__version__
    assert (result.seed, result.config_hash) == (0, CONFIG.hash)
    assert TranslationResult.from_dict(json.loads((directory / "result.json").read_text())) == result
    assert TranslationConfig.from_dict(yaml.safe_load((directory / "config.yaml").read_text())) == CONFIG
    steps = pd.read_parquet(directory / "steps.parquet")
    for row in result.epochs:
        assert row.training_loss == pytest.approx(steps[steps["epoch"] == row.epoch]["loss"].mean(), rel=1e-6)


def test_the_test_figures_are_those_of_the_trained_network(uninterrupted: tuple[Path, TranslationResult]) -> None:
    directory, result = uninterrupted
    network, data = trained_translator(directory)
    assert not network.training
    assert data.vocabulary.to_json() == BytePairs.load(directory / "vocabulary.json").to_json()
    assert data.vocabulary.size == result.vocabulary
    assert result.parameters == sum(parameter.numel() for parameter in network.parameters())
    translations = translate(network, data, "test", width=2, longer_by=5)
    assert (directory / "translations.txt").read_text().splitlines() == translations
    assert bleu(translations, data.pairs("test").target).score == result.test_bleu_beam
    loss, right, count = 0.0, 0, 0
    with torch.no_grad():
        for source, target in zip(data.pairs("test").source, data.pairs("test").target, strict=True):
            (one,), (other,) = data.vocabulary.encode([source]), data.vocabulary.encode([target])
            labels = torch.tensor([*other, 2])
            logits = network(torch.tensor([[*one, 2]]), torch.tensor([[1, *other]]))[0]
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(1) == labels).sum())
            count += len(labels)
    assert result.test_loss == pytest.approx(loss / count, rel=1e-5)
    assert result.test_accuracy == right / count


@pytest.mark.parametrize("at", [2, STEPS + 1])
def test_interrupted_and_resumed(tmp_path: Path, uninterrupted: tuple[Path, TranslationResult], at: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, listeners=[Interrupt(at)])
    torch.manual_seed(at)  # what the caller's generator holds must not matter
    seen: list[int] = []
    result = train(CONFIG, tmp_path, on_epoch=lambda row: seen.append(row.epoch))
    assert seen == list(range((at - 1) // STEPS + 1, 4))
    assert without_seconds(result) == without_seconds(uninterrupted[1])
    assert_same_run(tmp_path, uninterrupted[0], **SAME)


@pytest.mark.slow
def test_a_run_that_trains(tmp_path: Path) -> None:
    result = train(replace(CONFIG, rate=1e-2, epochs=12, warmup_steps=10), tmp_path)
    assert result.outcome == "trained"
    assert result.test_accuracy > result.chance_accuracy
    assert result.plateaued is False
    assert result.epochs[-1].training_loss < result.epochs[0].training_loss - 1


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["fixup", "skipinit", "rezero"])
def test_schemes_train_with_decay_and_clipping(tmp_path: Path, scheme: str) -> None:
    config = replace(
        CONFIG, scheme=scheme, epochs=2, weight_decay=1e-4, decoupled_decay=True, clip=1.0, scalar_rate_scale=0.1
    )
    result = train(config, tmp_path)
    assert result.outcome != "diverged"
    assert result.epochs[1].training_loss < result.epochs[0].training_loss
    network, _ = trained_translator(tmp_path)
    assert not [module for module in network.modules() if isinstance(module, torch.nn.LayerNorm)]


@pytest.mark.slow
def test_micro_batches_are_the_batch(tmp_path: Path) -> None:
    """In double precision and without dropout, however the pairs and their tokens fall into the parts."""
    model = CONFIG.model.replace("dropout=0.2", "dropout=0.0")
    whole = replace(CONFIG, model=model, precision="64-true", epochs=1, clip=0.1)
    one = train(whole, tmp_path / "whole")
    small = replace(whole, micro_batch_tokens=100)
    parts = train(small, tmp_path / "parts")
    assert parts.epochs[0].training_loss == pytest.approx(one.epochs[0].training_loss, rel=1e-9)
    assert parts.epochs[0].training_accuracy == pytest.approx(one.epochs[0].training_accuracy, rel=1e-9)
    assert parts.test_loss == pytest.approx(one.test_loss, rel=1e-6)
    with pytest.raises(ValueError, match="Probes measure whole batches, but micro_batch_tokens=100 passes them in p"):
        train(small, tmp_path / "no", ride_along=RideAlong(("signal",), every(1)))


MISTAKES = [
    ({"model": "normless:wide_resnet(depth=10)"}, "does not take vocabulary"),
    ({"model": "transformer"}, r"Expected normless:transformer\(…\), FILE\.py:FUNCTION or the folder.*'transformer'"),
    ({"model": "normless:transformer(vocabulary=9)"}, "is the number of byte pairs of the text: leave it out"),
    ({"model": "normless:transformer(padding=3)"}, "the token that fills up sentences is 0"),
    ({"scheme": "magic"}, "There is no scheme 'magic'"),
    (
        {"data": "europarl"},
        "There is no data set 'europarl' of parallel text. There are grammar, multi30k",
    ),
    ({"source": "fr"}, "languages are en and de"),
    ({"vocabulary": 10}, "and the special tokens alone are"),
    ({"batch_tokens": 5}, "allow larger batches"),
    ({"longest": 3}, "No training pair of grammar has both sides within 3 tokens"),
    ({"warmup_steps": 18}, "Expected warmup_steps below the 18 steps of epochs=3, got 18"),
]


@pytest.mark.parametrize(("change", "sentence"), MISTAKES)
def test_translation_mistakes_leave_no_files(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    directory = tmp_path / "run"
    with pytest.raises(ValueError, match=sentence):
        train(replace(CONFIG, **change), directory)
    assert not directory.exists()


def test_a_network_that_cannot_decode_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("from torch import nn\ndef f(vocabulary): return nn.Linear(1, 1)\n")
    with pytest.raises(ValueError, match=r"net\.py:f is not a network that translates"):
        train(replace(CONFIG, model=f"{file}:f"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_packages_are_named_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(ModuleNotFoundError, match=r"BLEU needs sacrebleu.*normless\[translation\]"):
        train(CONFIG, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_runs_of_other_kinds_are_distinguished(uninterrupted: tuple[Path, TranslationResult]) -> None:
    directory, _ = uninterrupted
    with pytest.raises(RunDirectoryError, match=r"holds another run: rate is 0\.003 there and 0\.5 here"):
        train(replace(CONFIG, rate=0.5), directory)
    with pytest.raises(RunDirectoryError, match="A training run has no setting"):
        train(TrainConfig(), directory)
