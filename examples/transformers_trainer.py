"""transformers' Trainer: a vision transformer without layer norms (T-Fixup), watched, saved and loaded.

pip install "normless[lab,zoo]" accelerate
python examples/transformers_trainer.py --epochs 10 --out vit-without-norms
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from digits import digits
from torch import nn
from transformers import EvalPrediction, Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

import normless as nl
from normless.integrations import TrainerWatch


def collate(examples: list[Any]) -> dict[str, Any]:
    """Return a batch under the names of the network's arguments."""
    return {
        "pixel_values": torch.stack([image for image, _ in examples]),
        "labels": torch.stack([label for _, label in examples]),
    }


def train(epochs: int, out: str, examples: int | None = None) -> tuple[nn.Module, Trainer]:
    """Return the network as saved in the folder `out`, and the trainer."""
    set_seed(0)
    train_set, test_set = digits(examples)
    config = ViTConfig(
        image_size=32, patch_size=8, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128
    )
    config.num_labels = 10
    net = nl.convert(ViTForImageClassification(config), "t_fixup", pixel_values=train_set[:2][0])
    optimizer = torch.optim.AdamW(nl.param_groups(net, lr=1e-3, weight_decay=0.05))
    arguments = TrainingArguments(
        out,
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        lr_scheduler_type="cosine",
        warmup_steps=0,  # T-Fixup's point
        logging_strategy="epoch",
        save_strategy="no",
        eval_strategy="epoch",
        report_to="none",
    )
    watch = TrainerWatch()
    trainer = Trainer(
        net,
        arguments,
        data_collator=collate,
        train_dataset=train_set,
        eval_dataset=test_set,
        compute_metrics=lambda predictions: {"accuracy": accuracy(predictions)},
        optimizers=(optimizer, None),  # the Trainer's own would decay the scalars; it builds our schedule
        callbacks=[watch],
    )
    trainer.train()
    print(*(watch.watch.messages or ["nothing went wrong"]), sep="\n")
    trainer.save_model(out)  # with the conversion
    return nl.load(out), trainer


def accuracy(prediction: EvalPrediction) -> float:
    """Return the share of correct classes."""
    return float((prediction.predictions.argmax(1) == prediction.label_ids).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--examples", type=int, help="train on fewer than 1437")
    parser.add_argument("--out", default="vit-without-norms", help="folder of the saved network")
    train(**vars(parser.parse_args()))
