"""Converted networks in the Trainer of transformers and in Lightning."""

from __future__ import annotations

import pickle
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

import normless as nl

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
IDS = torch.arange(14).reshape(2, 7) + 2


def bert() -> tuple[Any, dict[str, Any]]:
    return hf.BertForSequenceClassification(hf.BertConfig(vocab_size=50, **SIZES)), {"input_ids": IDS}


def gpt2() -> tuple[Any, dict[str, Any]]:
    config = hf.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=12, bos_token_id=0, eos_token_id=1
    )
    return hf.GPT2LMHeadModel(config), {"input_ids": IDS, "use_cache": False}


def vit() -> tuple[Any, dict[str, Any]]:
    config = hf.ViTConfig(image_size=16, patch_size=8, **SIZES)
    return hf.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


def swin() -> tuple[Any, dict[str, Any]]:
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2]}
    config = hf.SwinConfig(window_size=4, mlp_ratio=2.0, **sizes)
    return hf.SwinForImageClassification(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def perturbed(net: Any) -> Any:
    """The network with other weights than its conversion gave it, in evaluation."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return net.eval()


# The second scheme leaves every parameter its name, so that the library would notice nothing.
@pytest.mark.parametrize("scheme", ["skipinit", "batch_norm_sqrt2"])
@pytest.mark.parametrize("build", [bert, gpt2, vit, swin])
def test_a_conversion_is_kept_by_save_pretrained_and_refused_by_from_pretrained(
    build: Any, scheme: str, tmp_path: Path
) -> None:
    model, inputs = build()
    net = perturbed(nl.convert(model.eval(), scheme, **inputs))
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


def test_a_folder_of_the_original_is_replaced_and_the_original_saves_itself(tmp_path: Path) -> None:
    model, inputs = bert()
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path) is not None
    nl.convert(model, "fixup", **inputs).save_pretrained(tmp_path)
    with pytest.raises(OSError, match="normless"):
        type(model).from_pretrained(tmp_path)


def test_what_a_folder_cannot_hold_is_refused(tmp_path: Path) -> None:
    model, inputs = bert()
    net = nl.convert(model, "skipinit", **inputs)
    with pytest.raises(nl.RecipeError, match="push_to_hub"):
        net.save_pretrained(tmp_path, push_to_hub=True)
    with pytest.raises(nl.RecipeError, match="shapes"):
        net.save_pretrained(tmp_path, state_dict={name: one[:0] for name, one in net.state_dict().items()})
    net.save_pretrained(tmp_path, is_main_process=False)
    assert list(tmp_path.iterdir()) == []


def test_what_the_trainer_calls_to_save(tmp_path: Path) -> None:
    model, inputs = bert()
    net = perturbed(nl.convert(model, "skipinit", **inputs))
    trainer = SimpleNamespace(
        model=net, processing_class=None, data_collator=None, is_distributed_loading_by_transformers=False,
        args=SimpleNamespace(output_dir=str(tmp_path), should_save=True),
    )  # fmt: skip
    hf.Trainer._save(trainer, str(tmp_path), state_dict=net.state_dict())
    assert torch.equal(nl.load(tmp_path)(**inputs).logits, net(**inputs).logits)


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Eight random sentences of two classes."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(50, (7,), generator=generator)
        return {"input_ids": ids, "labels": torch.tensor(index % 2)}


@pytest.mark.filterwarnings("ignore")  # the trainer's own
@pytest.mark.skipif(find_spec("accelerate") is None, reason="transformers' Trainer needs accelerate")
def test_the_trainer_saves_and_resumes(tmp_path: Path) -> None:
    model, inputs = bert()

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


class Classifier(nn.Module):
    """As those of transformers: the loss is in its output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor, labels: Tensor) -> SequenceClassifierOutput:
        logits = self.layer(x)
        return SequenceClassifierOutput(loss=F.cross_entropy(logits, labels), logits=logits)


def test_the_callback_of_transformers() -> None:
    from normless.integrations import TrainerWatch

    torch.manual_seed(0)
    model, callback = Classifier(), TrainerWatch(interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handler = CallbackHandler([callback], model, None, optimizer, None)
    state, control, losses = TrainerState(), TrainerControl(), []
    arguments: Any = SimpleNamespace()
    handler.on_train_begin(arguments, state, control)
    for _ in range(5):
        loss = model(torch.randn(4, 6), labels=torch.tensor([0, 1, 2, 0])).loss
        with torch.no_grad():
            model(torch.randn(4, 6), labels=torch.tensor([0, 1, 2, 0]))
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        handler.on_step_end(arguments, state, control)
    handler.on_train_end(arguments, state, control)
    seen = callback.watch.table.query("quantity == 'loss'")
    assert seen["step"].tolist() == [1, 3, 5]
    assert seen["value"].tolist() == pytest.approx(losses[::2])
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # Lightning's, about torch
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_the_callback_of_lightning() -> None:
    pl = pytest.importorskip("pytorch_lightning")
    from normless.integrations import LightningWatch

    class Module(pl.LightningModule):
        """Records the losses that its Trainer, which accumulates gradients, is given."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
            self.losses: list[float] = []

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    torch.manual_seed(0)
    module, callback = Module(), LightningWatch(interval=2)
    data = TensorDataset(torch.randn(32, 6), torch.randint(3, (32,)))
    extras = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(
        max_epochs=1,
        accumulate_grad_batches=2,
        callbacks=[callback],
        accelerator="cpu",
        **dict.fromkeys(extras, False),
    )
    trainer.fit(module, DataLoader(data, batch_size=4))
    seen = callback.watch.table.query("quantity == 'loss'")
    assert seen["step"].tolist() == [1, 3]
    steps = torch.tensor(module.losses).view(4, 2).mean(1)
    assert seen["value"].tolist() == pytest.approx(steps[::2].tolist())
    assert {"output", "update"} <= set(callback.watch.table["quantity"])
    assert not module._forward_pre_hooks
