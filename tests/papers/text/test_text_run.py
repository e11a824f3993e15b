"""Runs on a few opinions: their figures, schemes, parameter groups, checkpoints of transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from text_helpers import BERT, quick, written

from normless.models import TokenNumbers, text_classifier
from normless.optim import param_groups
from normless.residual import residual_map
from normless_lab.train import RunDirectory, network_and_data, train
from normless_papers.text import BytePairs, TextConfig, TextResult
from normless_papers.text.text_task import TextTask


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TextResult]:
    directory = tmp_path_factory.mktemp("uninterrupted")
    return directory, train(quick(tmp_path_factory.mktemp("network")), directory)


def test_the_test_figures_are_those_of_the_trained_network(uninterrupted: tuple[Path, TextResult]) -> None:
    directory, result = uninterrupted
    # A warm-up over a tenth of the steps, within a straight line to 0.
    assert [row.rate for row in result.epochs] == pytest.approx([3e-3 * (1 - step / 30) for step in (9, 19, 29)])
    assert result.data.startswith("sentiment: opinions of the embedded grammar, seed 0; 320 train / 80 test")
    assert result.chance_accuracy == 0.5
    network, data = network_and_data(directory, TextConfig)
    assert not network.training
    assert result.parameters == sum(parameter.numel() for parameter in network.parameters())
    pieces = BytePairs.load(directory / "vocabulary.json")
    assert data.tokens.size == pieces.size == result.vocabulary
    loss, right = 0.0, 0
    with torch.no_grad():
        for sentence, label in zip(data.text.test.sentences, data.text.test.labels, strict=True):
            (tokens,) = pieces.encode([sentence])
            logits = network(torch.tensor([[1, *tokens, 2]]))
            loss += float(F.cross_entropy(logits, torch.tensor([label])))
            right += int(logits.argmax()) == label
    assert result.test_loss == pytest.approx(loss / 80, rel=1e-5)
    assert result.test_accuracy == right / 80


@pytest.mark.slow
def test_a_run_that_trains(tmp_path: Path) -> None:
    """Of three classes in a file, each with a word of its own among others."""
    (tmp_path / "text").mkdir()
    for name, size in (("train", 240), ("dev", 60)):
        rows = [
            f"it {'is' if row % 2 else 'was'} {('bad', 'fine', 'good')[row % 3]} {row}\t{row % 3}"
            for row in range(size)
        ]
        (tmp_path / "text" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]))
    config = quick(
        tmp_path, data="labelled_text", data_root=str(tmp_path / "text"), rate=1e-2, epochs=6, label_smoothing=0.05
    )
    result = train(config, tmp_path / "run")
    assert result.outcome == "trained"
    assert result.test_accuracy > 0.95
    assert result.chance_accuracy == pytest.approx(1 / 3)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["fixup", "skipinit", "none", "layer_norm"])
def test_schemes_train(tmp_path: Path, scheme: str) -> None:
    result = train(quick(tmp_path, scheme=scheme, scalar_rate_scale=0.1), tmp_path / "run")
    assert result.epochs[-1].training_loss < result.epochs[0].training_loss
    network, _ = network_and_data(tmp_path / "run", TextConfig)
    norms = [module for module in network.modules() if isinstance(module, torch.nn.LayerNorm)]
    assert bool(norms) == (scheme == "layer_norm")


def test_groups_are_those_of_the_policy(tmp_path: Path) -> None:
    config = quick(tmp_path, decay_policy="weights+last", weight_decay=0.5, beta2=0.95, epsilon=1e-6)
    task = TextTask(config, RunDirectory(tmp_path / "run", TextConfig, TextResult))
    network, (inputs,) = task.build_network(), task.example_inputs()
    found = residual_map(network, inputs)
    optimizer = task.build_optimizer(network, found)
    assert isinstance(optimizer, torch.optim.AdamW)
    task.config = replace(config, decoupled_decay=False)
    assert type(task.build_optimizer(network, found)) is torch.optim.Adam
    expected = param_groups(network, lr=3e-3, weight_decay=0.5, policy="weights+last", example_inputs=inputs)
    assert [(group["name"], group["weight_decay"]) for group in optimizer.param_groups] == [
        (group["name"], group["weight_decay"]) for group in expected
    ]
    decayed = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decayed["weights"] == decayed["gamma_last"] == 0.5
    assert decayed["gamma_other"] == decayed["biases"] == 0.0
    assert all(group["betas"] == (0.9, 0.95) and group["eps"] == 1e-6 for group in optimizer.param_groups)


@pytest.mark.slow
def test_bert_from_its_configuration(tmp_path: Path) -> None:
    config = TextConfig(model=BERT, data="sentiment(train=96, test=20)", vocabulary=250, epochs=1, device="cpu")
    result = train(replace(config, scheme="fixup"), tmp_path)
    network, data = network_and_data(tmp_path, TextConfig)
    assert result.steps == 3
    assert network.network.config.vocab_size == data.tokens.size == result.vocabulary
    assert sum(name.endswith("multiplier") for name, _ in network.named_parameters()) == 4
    assert result.versions["transformers"]


def checkpoint(folder: Path, *, tokenizer: bool) -> Path:
    """A BERT with random weights, and word pieces of its own with other special tokens than ours."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["the", "its", "this", "his", "her", "film", "story", "plot", "is", "was", "not", "never", "but", ","]
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[SEP]", "[CLS]", "[PAD]", *words])}
    torch.manual_seed(5)
    _, _, text = BERT.partition(":")
    model = text_classifier(text, classes=2, tokens=TokenNumbers(len(vocabulary), 3, 2, 1))
    model.network.save_pretrained(folder)
    if tokenizer:
        words_only = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        words_only.normalizer = normalizers.Lowercase()
        words_only.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        words_only.post_processor = processors.BertProcessing(("[SEP]", 1), ("[CLS]", 2))
        names = {"unk_token": "[UNK]", "sep_token": "[SEP]", "cls_token": "[CLS]", "pad_token": "[PAD]"}
        PreTrainedTokenizerFast(tokenizer_object=words_only, **names).save_pretrained(folder)
    return folder


def test_a_checkpoint_brings_weights_and_tokenizer(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "bert", tokenizer=True)
    config = TextConfig(
        model=f"transformers:{folder}", data="sentiment(train=64, test=20)", longest=12, epochs=1, device="cpu"
    )
    task = TextTask(config, RunDirectory(tmp_path / "run", TextConfig, TextResult))
    data = task.data
    batch = next(data.train_batches(8, seed=0, epoch=0)).inputs
    assert batch.shape[1] == 12
    assert set(batch[:, 0].tolist()) == {2}
    assert (batch == 3).any()
    assert "the 18 tokens of the checkpoint" in data.provenance
    before = task.build_network().network.bert.embeddings.word_embeddings.weight
    stored = text_classifier(str(folder)).network.bert.embeddings.word_embeddings.weight
    assert torch.equal(before, stored)
    result = train(config, tmp_path / "run")
    assert result.vocabulary == 18
    assert not (tmp_path / "run" / "vocabulary.json").exists()


def test_a_checkpoint_without_tokenizer_learns_byte_pairs(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "bert", tokenizer=False)
    config = TextConfig(model=f"transformers:{folder}", data="sentiment(train=64, test=20)", device="cpu")
    with pytest.raises(ValueError, match=r"has 18 tokens, but the data have .* the setting voc"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_network_of_another_shape_is_refused(tmp_path: Path) -> None:
    config = quick(tmp_path, model=f"{written(tmp_path)}:deaf")
    with pytest.raises(ValueError, match=r"Expected 1×2 logits of .*deaf for the longest sentence of .* got 1×"):
        train(config, tmp_path / "run")
