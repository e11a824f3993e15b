"""Classifiers of sentences of transformers: by kind or from a checkpoint, without a network."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import Tensor

from normless.models import TokenNumbers, checkpoint_folder, text_classifier
from normless.models._spec import build_model

SIZES = "num_hidden_layers=2, hidden_size=32, num_attention_heads=2"
KINDS = {
    "bert": f"bert({SIZES}, intermediate_size=48)",
    "gpt2": f"gpt2({SIZES})",
    "t5": "t5(num_layers=2, num_decoder_layers=1, d_model=32, num_heads=2, d_ff=48, d_kv=16)",
}
TOKENS = TokenNumbers(vocabulary=60, padding=0, start=1, end=2)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a connection fails."""

    def refused(*_: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refused)


def sentences(*lengths: int) -> Tensor:
    """Random sentences of these lengths between start and end."""
    rows = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.randint(3, 60, (length,))
        row[0], row[length - 1] = 1, 2
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_logits_do_not_depend_on_padding(kind: str) -> None:
    torch.manual_seed(0)
    model = text_classifier(KINDS[kind], classes=3, tokens=TOKENS).eval()
    tokens = sentences(5, 9, 4)
    logits = model(tokens)
    assert logits.shape == (3, 3)
    for row, length in enumerate((5, 9, 4)):
        torch.testing.assert_close(model(tokens[row : row + 1, :length])[0], logits[row], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_network_is_that_of_transformers(kind: str) -> None:
    """The same weights as the library draws from the same configuration, in its own class."""
    build, common = {
        "bert": (hf.BertForSequenceClassification, hf.BertConfig(intermediate_size=48, hidden_size=32)),
        "gpt2": (hf.GPT2ForSequenceClassification, hf.GPT2Config(n_embd=32, bos_token_id=1, eos_token_id=2)),
    }[kind]
    common.num_hidden_layers = common.num_attention_heads = 2
    common.vocab_size, common.num_labels, common.pad_token_id = 60, 3, 0
    torch.manual_seed(0)
    expected = build(common).eval()
    torch.manual_seed(0)
    model = text_classifier(KINDS[kind], classes=3, tokens=TOKENS).eval()
    assert type(model.network) is build
    tokens = sentences(6, 8)
    with torch.no_grad():
        logits = expected(input_ids=tokens, attention_mask=(tokens != 0).long()).logits
        assert torch.equal(model(tokens), logits)


def test_a_checkpoint_keeps_its_weights_and_gets_a_new_classifier(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = hf.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, vocab_size=60
    )
    trained = hf.BertForMaskedLM(config)
    trained.save_pretrained(tmp_path / "trained")
    assert checkpoint_folder(f"transformers:{tmp_path}/trained") == tmp_path / "trained"
    verbosity = hf.logging.get_verbosity()
    found = [build_model(f"transformers:{tmp_path}/trained", classes=4) for _ in range(2)]
    assert hf.logging.get_verbosity() == verbosity
    ours, theirs = found[0].network.state_dict(), trained.state_dict()
    shared = {name for name in theirs if name.startswith("bert.")}
    assert len(shared) > 20
    assert all(torch.equal(ours[name], theirs[name]) for name in shared)
    assert ours["classifier.weight"].shape == (4, 32)
    assert not torch.equal(ours["classifier.weight"], found[1].network.state_dict()["classifier.weight"])
    with pytest.raises(ValueError, match="has 60 tokens, but the data have 61; limit"):
        text_classifier(f"{tmp_path}/trained", tokens=TokenNumbers(61, 0))


def test_weights_that_may_run_code_are_not_opened(tmp_path: Path) -> None:
    text_classifier(KINDS["bert"], tokens=TOKENS).network.config.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ValueError, match=r"has no model\.safetensors; other weight files are not opened"):
        text_classifier(str(tmp_path))
