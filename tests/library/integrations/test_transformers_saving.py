"""`save_pretrained` and the Trainer of transformers keep a conversion, and `from_pretrained` refuses what has one."""

from __future__ import annotations

import pickle
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from gallery import ROWS
from matrix.case import perturbed
from torch import Tensor, nn

import normless as nl


def network(name: str) -> tuple[Any, dict[str, Any]]:
    """A network of the gallery and its inputs, in evaluation."""
    return ROWS[name].network().eval(), ROWS[name].example()[1]


def converted(scheme: str = "skipinit", name: str = "hf BERT") -> tuple[Any, Any, dict[str, Any]]:
    """A network, its conversion with other weights than it was given, in evaluation, and inputs."""
    model, inputs = network(name)
    return model, perturbed(nl.convert(model, scheme, **inputs), 0.1).eval(), inputs


# The second scheme leaves every parameter its name, so that the library would notice nothing.
@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("hf BERT", "batch_norm_sqrt2"),
        ("hf GPT-2", "skipinit"),
    ],
)
def test_a_conversion_is_kept_by_save_pretrained_and_refused_by_from_pretrained(
    name: str, scheme: str, tmp_path: Path
) -> None:
    model, net, inputs = converted(scheme, name)
    expected = net(**inputs).logits
    for one in (net, deepcopy(net), pickle.loads(pickle.dumps(net)), torch.compile(net, backend="eager")):
        one.save_pretrained(tmp_path)
        loaded = nl.load(tmp_path)
        assert torch.equal(loaded(**inputs).logits, expected)
    # What was loaded knows its inputs and its way to be saved, too.
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(nl.load(tmp_path / "again")(**inputs).logits, expected)
    with pytest.raises(OSError, match=r"read this folder by normless\.load"):
        type(model).from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has model type `normless`"):
        hf.AutoModel.from_pretrained(tmp_path)


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Eight random sentences of two classes."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(2, 50, (7,), generator=generator)
        return {"input_ids": ids, "labels": torch.tensor(index % 2)}


@pytest.mark.filterwarnings("ignore")  # the trainer's own
@pytest.mark.skipif(find_spec("accelerate") is None, reason="transformers' Trainer needs accelerate")
def test_the_trainer_saves_and_resumes(tmp_path: Path) -> None:
    model, inputs = network("hf BERT")

    def trainer(net: nn.Module, steps: int) -> Any:
        settings = {"max_steps": steps, "save_steps": 1, "per_device_train_batch_size": 4, "report_to": []}
        args = hf.TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True, **settings)
        return hf.Trainer(model=net, args=args, train_dataset=Sentences())

    net = nl.convert(model, "skipinit", **inputs)
    whole = trainer(net, 2)
    whole.train()
    whole.save_model(tmp_path / "last")
    net.eval()
    for folder in ("checkpoint-2", "last"):
        assert torch.equal(nl.load(tmp_path / folder).eval()(**inputs).logits, net(**inputs).logits)
    resumed = nl.convert(model, "skipinit", **inputs)
    trainer(resumed, 2).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    torch.testing.assert_close(resumed.eval()(**inputs).logits, net(**inputs).logits)
