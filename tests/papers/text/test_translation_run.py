"""Runs on a few sentences of the grammar: their figures, schemes, loss per token and schedule."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from text_helpers import PAIRS

from normless.errors import MissingExtraError
from normless_lab.train import network_and_data, train
from normless_papers.text import BytePairs, TranslationConfig, TranslationResult, bleu, translate
from normless_papers.text.translation_task import inverse_square_root, token_cross_entropy


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TranslationResult]:
    directory = tmp_path_factory.mktemp("uninterrupted")
    return directory, train(PAIRS, directory)


def test_the_test_figures_are_those_of_the_trained_network(uninterrupted: tuple[Path, TranslationResult]) -> None:
    directory, result = uninterrupted
    assert [row.validation_bleu is None for row in result.epochs] == [True, False, False]
    assert [row.rate for row in result.epochs] == pytest.approx([3e-3 * (2 / step) ** 0.5 for step in (6, 12, 18)])
    assert result.validation_loss == result.epochs[-1].validation_loss
    assert result.bleu_signature.startswith("nrefs:1|case:mixed|")
    assert "grammar, en to de" in result.data
    network, data = network_and_data(directory, TranslationConfig)
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
            (source_tokens,), (target_tokens,) = data.vocabulary.encode([source]), data.vocabulary.encode([target])
            labels = torch.tensor([*target_tokens, 2])
            logits = network(torch.tensor([[*source_tokens, 2]]), torch.tensor([[1, *target_tokens]]))[0]
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(1) == labels).sum())
            count += len(labels)
    assert result.test_loss == pytest.approx(loss / count, rel=1e-5)
    assert result.test_accuracy == right / count


@pytest.mark.slow
def test_a_run_that_trains(tmp_path: Path) -> None:
    result = train(replace(PAIRS, rate=1e-2, epochs=12, warmup_steps=10), tmp_path)
    assert result.outcome == "trained"
    assert result.test_accuracy > result.chance_accuracy
    assert result.plateaued is False
    assert result.epochs[-1].training_loss < result.epochs[0].training_loss - 1


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["fixup", "skipinit", "rezero"])
def test_schemes_train_with_decay_and_clipping(tmp_path: Path, scheme: str) -> None:
    config = replace(
        PAIRS, scheme=scheme, epochs=2, weight_decay=1e-4, decoupled_decay=True, clip=1.0, scalar_rate_scale=0.1
    )
    result = train(config, tmp_path)
    assert result.outcome != "diverged"
    assert result.epochs[1].training_loss < result.epochs[0].training_loss
    network, _ = network_and_data(tmp_path, TranslationConfig)
    assert not [module for module in network.modules() if isinstance(module, torch.nn.LayerNorm)]


def test_a_network_that_cannot_decode_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("from torch import nn\ndef f(vocabulary): return nn.Linear(1, 1)\n")
    with pytest.raises(ValueError, match=r"net\.py:f is not a network that translates"):
        train(replace(PAIRS, model=f"{file}:f"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_packages_are_named_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normless.extras.find_spec", lambda module: None if module == "sacrebleu" else module)
    with pytest.raises(MissingExtraError, match=r"BLEU needs sacrebleu.*normless\[translation\]"):
        train(PAIRS, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@given(st.integers(1, 10_000), st.integers(1, 4096), st.integers(0, 30_000))
def test_inverse_square_root_is_that_of_the_paper(warmup: int, width: int, done: int) -> None:
    step = done + 1
    published = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
    largest = width**-0.5 * warmup**-0.5
    assert inverse_square_root(done, warmup) == pytest.approx(published / largest, rel=1e-12)
    assert inverse_square_root(warmup - 1, warmup) == 1
    assert inverse_square_root(4 * warmup - 1, warmup) == 0.5


@given(st.integers(1, 4), st.integers(1, 5), st.integers(2, 6), st.floats(0, 0.9), st.integers(0, 10**6))
def test_the_loss_is_that_of_every_token_but_padding(
    batch: int, length: int, vocabulary: int, smoothing: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, length, vocabulary, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(vocabulary, (batch, length), generator=generator)
    expected = 0.0
    for row, label in zip(logits.flatten(0, 1).tolist(), labels.flatten().tolist(), strict=True):
        terms = [math.log(sum(map(math.exp, row))) - value for value in row]
        expected += ((1 - smoothing) * terms[label] + smoothing * sum(terms) / vocabulary) * (label != 0)
    total = token_cross_entropy(logits, labels, label_smoothing=smoothing)
    assert total.item() == pytest.approx(expected)
    total.backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad.abs().sum(-1) > 0, labels != 0)
