"""The tasks of runs on text: checkpoints of transformers, the schedule and the loss per token."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from text_helpers import BERT

from normless.models import TokenNumbers, text_classifier
from normless_lab.train import train
from normless_lab.train._directory import RunDirectory
from normless_papers.text.config import TextConfig, TextResult
from normless_papers.text.text_task import TextTask
from normless_papers.text.translation_task import inverse_square_root, token_cross_entropy


def checkpoint(folder: Path) -> Path:
    """A BERT with random weights, and word pieces of its own with other special tokens than ours."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["the", "its", "this", "his", "her", "film", "story", "plot", "is", "was", "not", "never", "but", ","]
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[SEP]", "[CLS]", "[PAD]", *words])}
    torch.manual_seed(5)
    _, _, text = BERT.partition(":")
    model = text_classifier(text, classes=2, tokens=TokenNumbers(len(vocabulary), 3, 2, 1))
    model.network.save_pretrained(folder)
    words_only = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words_only.normalizer = normalizers.Lowercase()
    words_only.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words_only.post_processor = processors.BertProcessing(("[SEP]", 1), ("[CLS]", 2))
    names = {"unk_token": "[UNK]", "sep_token": "[SEP]", "cls_token": "[CLS]", "pad_token": "[PAD]"}
    PreTrainedTokenizerFast(tokenizer_object=words_only, **names).save_pretrained(folder)
    return folder


def test_a_checkpoint_brings_weights_and_tokenizer(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "bert")
    config = TextConfig(
        model=f"transformers:{folder}", data="sentiment(train=64, test=20)", longest=12, epochs=1, device="cpu"
    )
    task = TextTask(config, RunDirectory(tmp_path / "run", TextConfig, TextResult))
    data = task.data
    batch = next(data.train_batches(8, seed=0, epoch=0)).inputs
    assert batch.shape[1] == 12
    assert set(batch[:, 0].tolist()) == {2}
    assert (batch == 3).any()
    before = task.build_network().network.bert.embeddings.word_embeddings.weight
    stored = text_classifier(str(folder)).network.bert.embeddings.word_embeddings.weight
    assert torch.equal(before, stored)
    result = train(config, tmp_path / "run")
    assert result.vocabulary == 18
    assert not (tmp_path / "run" / "vocabulary.json").exists()


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
