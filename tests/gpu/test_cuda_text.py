"""Text and translation on the card: batches of many shapes, captured or not, and the results of the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cuda_helpers import DEVICE, NEEDS_CARD, approximately, assert_same_row

from normless_lab.train import train
from normless_papers.text.config import TextConfig, TranslationConfig

pytestmark = NEEDS_CARD

BERT = (
    "transformers:bert(num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64, "
    "hidden_dropout_prob={0}, attention_probs_dropout_prob={0})"
)
TRANSFORMER = "normless:transformer(layers=1, width=32, heads=2, feed_forward=64, norm='pre', dropout={0})"

# Adam's bias corrections count steps, as a warm-up does; 90 sentences leave 26 of 32 in the last batch.
BOTH: dict[str, Any] = {"epochs": 2, "vocabulary": 300, "precision": "64-true", "device": DEVICE}
TEXT = BOTH | {"model": BERT.format(0.0), "data": "sentiment(train=90, test=40)", "batch_size": 32}
TRANSLATION = BOTH | {"model": TRANSFORMER.format(0.0), "data": "grammar(train=90, validation=20, test=10)"}
TRANSLATION |= {"beam_width": 2, "longer_by": 10, "warmup_steps": 5}

CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "text": (TextConfig, TEXT),
    "text in parts": (TextConfig, TEXT | {"micro_batch_size": 12, "decoupled_decay": False, "clip": 0.1}),
    "translation": (TranslationConfig, TRANSLATION),
    "translation in parts": (TranslationConfig, TRANSLATION | {"micro_batch_tokens": 200, "clip": 0.5}),
}


def carried_out(folder: Path, kind: type, settings: dict[str, Any], **options: Any) -> tuple[Any, list[float]]:
    """The result of a run, and the loss of every step."""
    result = train(kind(**settings), folder, **options)
    return result, pd.read_parquet(folder / "steps.parquet")["loss"].tolist()


def assert_same(a: tuple[Any, list[float]], b: tuple[Any, list[float]], rtol: float) -> None:
    """The losses of steps, the rows of epochs and the scores."""
    approximately(a[1], b[1], rtol)
    assert (a[0].outcome, a[0].steps) == (b[0].outcome, b[0].steps)
    for row, other in zip(a[0].epochs, b[0].epochs, strict=True):
        assert_same_row(row, other, rtol)
    if isinstance(a[0].to_dict().get("test_bleu_beam"), float):
        assert a[0].test_bleu_greedy == pytest.approx(b[0].test_bleu_greedy, abs=0.2)
        assert a[0].test_bleu_beam == pytest.approx(b[0].test_bleu_beam, abs=0.2)


@pytest.mark.parametrize("name", CASES)
def test_a_run_on_the_card_is_that_on_the_cpu(name: str, tmp_path: Path) -> None:
    kind, settings = CASES[name]
    card = carried_out(tmp_path / "auto", kind, settings)
    assert_same(card, carried_out(tmp_path / "cpu", kind, settings | {"device": "cpu"}), 1e-5)
