"""Runs of both kinds: their files and figures, resuming, parts of batches, processes, mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from run_helpers import Interrupt, OnEpoch, assert_same_run, assert_two_processes_are_one, without_seconds
from text_helpers import BERT, PAIRS, quick, written
from torch import nn

from normless_lab.train import RunConfig, train
from normless_lab.train._training_run import network_and_data
from normless_papers.text.config import TextConfig
from normless_papers.text.tokens import BytePairs
from normless_papers.text.translating import bleu, translate

KINDS = ("text", "translation")
MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
TRANSLATOR = "normless:transformer(layers=1, width=16, heads=2, feed_forward=16, dropout=0.0)"


def config_of(kind: str, folder: Path) -> Any:
    return PAIRS if kind == "translation" else quick(folder)


@pytest.fixture(scope="module", params=KINDS)
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """The directory of a run, its configuration and its result."""
    config = config_of(request.param, tmp_path_factory.mktemp("network"))
    directory = tmp_path_factory.mktemp("uninterrupted")
    return directory, config, train(config, directory)


def test_a_run_learns_and_reports(uninterrupted: tuple[Path, Any, Any]) -> None:
    directory, _, result = uninterrupted
    losses = [row.training_loss for row in result.epochs]
    assert losses == sorted(losses, reverse=True)
    assert type(result).from_dict(json.loads((directory / "result.json").read_text())) == result
    steps = pd.read_parquet(directory / "steps.parquet")
    assert len(steps) == result.steps
    for row in result.epochs:
        assert row.training_loss == pytest.approx(steps[steps["epoch"] == row.epoch]["loss"].mean(), rel=1e-6)


def test_the_test_figures_are_those_of_the_trained_network(uninterrupted: tuple[Path, Any, Any]) -> None:
    """Sentence by sentence."""
    directory, config, result = uninterrupted
    network, data = network_and_data(directory, type(config))
    assert not network.training
    pieces = BytePairs.load(directory / "vocabulary.json")
    assert pieces.size == result.vocabulary
    check = translation_figures if config is PAIRS else text_figures
    losses, right = check(directory, result, network, data, pieces)
    assert result.test_loss == pytest.approx(sum(losses) / len(right), rel=1e-5)
    assert result.test_accuracy == sum(right) / len(right)


def text_figures(_: Path, result: Any, network: nn.Module, data: Any, pieces: BytePairs) -> Any:
    # A warm-up over a tenth of the steps, within a straight line to 0.
    assert [row.rate for row in result.epochs] == pytest.approx([3e-3 * (1 - step / 30) for step in (9, 19, 29)])
    assert (result.chance_accuracy, data.tokens.size) == (0.5, pieces.size)
    losses, right = [], []
    with torch.no_grad():
        for sentence, label in zip(*data.text.test, strict=True):
            (tokens,) = pieces.encode([sentence])
            logits = network(torch.tensor([[1, *tokens, 2]]))
            losses.append(float(F.cross_entropy(logits, torch.tensor([label]))))
            right.append(int(logits.argmax()) == label)
    return losses, right


def translation_figures(directory: Path, result: Any, network: nn.Module, data: Any, pieces: BytePairs) -> Any:
    assert [row.validation_bleu is None for row in result.epochs] == [True, False, False]
    assert [row.rate for row in result.epochs] == pytest.approx([3e-3 * (2 / step) ** 0.5 for step in (6, 12, 18)])
    translations = translate(network, data, "test", width=2, longer_by=5)
    assert (directory / "translations.txt").read_text().splitlines() == translations
    assert bleu(translations, data.pairs("test").target).score == result.test_bleu_beam
    losses, right = [], []
    with torch.no_grad():
        for sentences in zip(*data.pairs("test"), strict=True):
            source, target = pieces.encode(list(sentences))
            labels = torch.tensor([*target, 2])
            logits = network(torch.tensor([[*source, 2]]), torch.tensor([[1, *target]]))[0]
            losses.append(float(F.cross_entropy(logits, labels, reduction="sum")))
            right += (logits.argmax(1) == labels).tolist()
    return losses, right


def test_interrupted_and_resumed(tmp_path: Path, uninterrupted: tuple[Path, Any, Any]) -> None:
    directory, config, whole = uninterrupted
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, listeners=[Interrupt(2 + whole.steps // 3)])
    torch.manual_seed(1)  # what the caller's generator holds must not matter
    seen: list[int] = []
    result = train(config, tmp_path, listeners=[OnEpoch(lambda row: seen.append(row.epoch))])
    assert seen == [2, 3]
    assert without_seconds(result) == without_seconds(whole)
    files = {"vocabulary.json", "translations.txt"} & {path.name for path in directory.iterdir()}
    assert_same_run(tmp_path, directory, 3, MOMENTS, tuple(files))


def exact(config: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    """A run without dropout in double precision, and the same with its batches in parts."""
    config = replace(config, precision="64-true", epochs=1, clip=0.1)
    if isinstance(config, TextConfig):
        path = Path(written(folder))
        path.write_text(path.read_text().replace("nn.Dropout(0.1)", "nn.Dropout(0.0)"))
        return replace(config, model=f"{path}:words(blocks=1)", scheme="none"), {"micro_batch_size": 5}
    return replace(config, model=config.model.replace("dropout=0.2", "dropout=0.0")), {"micro_batch_tokens": 100}


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_are_the_batch(tmp_path: Path, kind: str) -> None:
    whole, micro = exact(config_of(kind, tmp_path), tmp_path)
    undivided = train(whole, tmp_path / "whole")
    parts = train(replace(whole, **micro), tmp_path / "parts")
    for name in ("training_loss", "training_accuracy"):
        assert getattr(parts.epochs[0], name) == pytest.approx(getattr(undivided.epochs[0], name), rel=1e-9)
    assert parts.test_loss == pytest.approx(undivided.test_loss, rel=1e-6)


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
UNEVEN_PAIRS = replace(
    PAIRS,
    model=TRANSLATOR,
    data="grammar(train=60, validation=5, test=7)",
    batch_tokens=300,
    micro_batch_tokens=100,
    epochs=1,
    clip=0.5,
    precision="64-true",
)


@pytest.mark.slow
@pytest.mark.parametrize("config", [SENTENCES, UNEVEN_PAIRS], ids=KINDS)
def test_two_processes_are_one(tmp_path: Path, config: RunConfig) -> None:
    assert_two_processes_are_one(config, tmp_path)
    texts = [path.read_text() for path in tmp_path.glob("*/translations.txt")]
    assert len(texts) == 2 * (config is UNEVEN_PAIRS)
    assert len(set(texts)) <= 1


def test_other_data_of_the_same_name_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(100))
    monkeypatch.setattr("normless_lab.train._settings.time.monotonic", lambda: next(seconds))

    def written_as(name: str, words: str) -> TextConfig:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        lines = "".join(f"{word} {index}\t{index % 2}\n" for index, word in enumerate(words.split() * 8))
        for part in ("train.tsv", "test.tsv"):
            (folder / part).write_text(f"sentence\tlabel\n{lines}")
        return TextConfig(model=BERT, data="labelled_text", data_root=str(folder), epochs=1, device="cpu")

    first = written_as("one", "good bad fine poor")
    assert written_as("copy", "good bad fine poor").hash == first.hash, "the place of the data does not matter"
    assert written_as("one", "good bad fine Poor").hash != first.hash


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("text", {"model": "normless:transformer"}, "Expected transformers:KIND.*'normless"),
    ("text", {"model": "{folder}/words.py:deaf"}, "Expected 1×2 logits of .*deaf for the longest sentence"),
    ("text", {"model": BERT.replace("embeddings=40", "embeddings=8")}, "the longest sentence .* setting longest"),
    ("translation", {"model": "normless:transformer(padding=3)"}, "the token that fills up sentences is 0"),
    ("translation", {"model": "{folder}/words.py:net"}, r"words\.py:net is not a network that translates"),
    ("translation", {"longest": 3}, "No training pair of grammar has both sides within 3 tokens"),
    ("translation", {"warmup_steps": 18}, "Expected warmup_steps below the 18 steps of epochs=3, got 18"),
]


@pytest.mark.parametrize(("kind", "change", "sentence"), MISTAKES)
def test_a_mistake_has_its_sentence_and_leaves_no_files(
    tmp_path: Path, kind: str, change: dict[str, Any], sentence: str
) -> None:
    config, file = config_of(kind, tmp_path), Path(written(tmp_path))
    file.write_text(file.read_text() + "\n\ndef net(vocabulary):\n    return nn.Linear(1, 1)\n")
    model = change.get("model", config.model).replace("{folder}", str(tmp_path))
    with pytest.raises(ValueError, match=sentence):
        train(replace(config, **{**change, "model": model}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
