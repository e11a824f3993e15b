"""The configuration of a run: round trips, hash, and the sentence for every mistake."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from normless_lab.train import TrainConfig

configs = st.builds(
    TrainConfig,
    scheme=st.sampled_from(["batch_norm", "skipinit(alpha=1)", "fixup"]),
    batch_size=st.integers(1, 10**4),
    epochs=st.integers(2, 10**4),
    rate=st.floats(1e-12, 1e6),
    momentum=st.floats(0, 0.999),
    dropout=st.none() | st.floats(0, 0.99),
    mixup=st.none() | st.floats(0, 10),
    flip=st.none() | st.booleans(),
    compile=st.booleans(),
    seed=st.integers(0, 2**40),
)


# Settings by which the same run is carried out elsewhere, or in another way.
PLACE = ("data_root", "device", "recompute", "strategy", "graph")


@given(configs)
def test_round_trip_through_yaml_and_json(config: TrainConfig) -> None:
    assert TrainConfig.from_dict(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config
    again = TrainConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.hash == config.hash


@pytest.mark.parametrize("field", [field.name for field in fields(TrainConfig)])
def test_hash_depends_on_every_setting_but_the_place(field: str) -> None:
    other: dict[str, Any] = {
        "model": "normless:resnet_cifar(depth=20)",
        "scheme": "fixup",
        "data": "cifar10",
        "data_root": "elsewhere",
        "micro_batch_size": 2,
        "ghost_batch_size": 32,
        "schedule": "cosine",
        "decay_policy": "all",
        "precision": "bf16-mixed",
        "device": "cpu",
        "recompute": "auto",
        "strategy": "fsdp2",
        "devices": 2,
        "compile": True,
        "graph": "never",
        "sync_batch_norm": True,
        "nesterov": True,
        "optimizer": "SGD(dampening=0.25)",
        "flip": True,
        "cutout": 3,
        "crop": 3,
        "batch_size": 32,
        "epochs": 7,
        "warmup_epochs": 3,
        "seed": 9,
    }
    changed = replace(TrainConfig(), **{field: other.get(field, 0.25)})
    assert (changed.hash == TrainConfig().hash) == (field in PLACE)


def test_ghost_batch_size_chooses_ghost_batch_norm() -> None:
    assert TrainConfig(ghost_batch_size=16).scheme_text == "ghost_batch_norm(size=16)"
    assert TrainConfig(scheme="fixup").scheme_text == "fixup"


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size should be greater than or equal to 1, got 0."),
    ({"batch_size": 2.5}, "batch_size should be a valid integer, got 2.5"),
    ({"batch_size": True}, "batch_size should be a valid integer, got True"),
    ({"micro_batch_size": 0}, "micro_batch_size should be greater than or equal to 1, got 0."),
    ({"micro_batch_size": 129}, "at most the 128 examples of a batch that each process has, got 129"),
    ({"micro_batch_size": 65, "devices": 2}, "at most the 64 examples of a batch that each process has, got 65"),
    ({"ghost_batch_size": 8, "scheme": "fixup"}, "ghost_batch_size=8 turns scheme batch_norm into ghost batch norm"),
    ({"epochs": 0}, "epochs should be greater than or equal to 1, got 0."),
    ({"rate": 0}, "rate should be greater than 0, got 0"),
    ({"rate": "fast"}, "rate should be a valid number, got 'fast'"),
    ({"rate": float("inf")}, "rate should be a finite number, got inf"),
    ({"momentum": 1.0}, r"momentum should be less than 1, got 1.0."),
    ({"schedule": "polynomial"}, "schedule: Unknown schedule 'polynomial'; the schedules are hold_then_halve, step"),
    ({"schedule": "step(at=(0.8, 0.3))"}, r"schedule: Expected shares .* as at, got \(0.8, 0.3\)"),
    ({"nesterov": True, "momentum": 0.0}, "Nesterov's momentum needs a momentum above 0, got momentum=0"),
    ({"warmup_epochs": -1}, "warmup_epochs should be greater than or equal to 0, got -1."),
    ({"warmup_epochs": 5, "epochs": 5}, "Expected warmup_epochs below epochs=5, got 5"),
    ({"weight_decay": -1e-4}, "weight_decay should be greater than or equal to 0, got -0.0001."),
    ({"decay_policy": "some"}, "There is no decay policy 'some'; the policies are guidelines, all, weights"),
    ({"scalar_rate_scale": -1}, "scalar_rate_scale should be greater than or equal to 0"),
    ({"label_smoothing": 1}, r"label_smoothing should be less than 1, got 1."),
    ({"dropout": 1}, r"dropout should be less than 1, got 1."),
    ({"dropout": "much"}, "dropout should be a valid number, got 'much'"),
    ({"mixup": -1}, "mixup should be greater than or equal to 0"),
    ({"crop": -1}, "crop should be greater than or equal to 0"),
    ({"cutout": 1.5}, "cutout should be a valid integer, got 1.5"),
    ({"flip": 1}, "flip should be a valid boolean, got 1"),
    ({"precision": "8"}, "precision should be '32-true', .*, got '8'"),
    ({"compile": None}, "compile should be a valid boolean, got None"),
    ({"seed": -1}, "seed should be greater than or equal to 0, got -1."),
    ({"device": "tpu"}, "device should be 'auto', 'cpu' or 'cuda', got 'tpu'"),
    ({"devices": 3}, "A batch of batch_size=128 cannot be shared evenly by devices=3."),
    ({"model": " "}, "model should match pattern .*, got ' '"),
    ({"data": 3}, "data should be a valid string, got 3"),
]


@pytest.mark.parametrize(("values", "sentence"), MISTAKES)
def test_mistakes_are_sentences(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TrainConfig(**values)


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(ValueError, match=r"epochs should be .*, got 0\. rate should be .*, got -1\.$"):
        TrainConfig(epochs=0, rate=-1)
    with pytest.raises(ValueError, match=r"by devices=3\. Expected warmup_epochs below epochs=5, got 5"):
        TrainConfig(devices=3, warmup_epochs=5, epochs=5)


def test_unknown_setting_is_named() -> None:
    with pytest.raises(ValueError, match="no setting learning_rate; it has model, scheme, data"):
        TrainConfig.from_dict({"learning_rate": 1})


def test_a_decay_policy_has_terms() -> None:
    kind: Any = TrainConfig
    assert kind(decay_policy="weights+last").hash != kind(decay_policy="weights").hash
    assert kind(decay_policy="guidelines+*.norm.weight").decay_policy == "guidelines+*.norm.weight"
    with pytest.raises(ValueError, match=r"'weights\+lost': 'lost' is unknown; .* as in weights\+last"):
        kind(decay_policy="weights+lost")
    with pytest.raises(ValueError, match="There is no decay policy 'some'; the policies are"):
        kind(decay_policy="some")
    with pytest.raises(ValueError, match="decay_policy should be a valid string, got 3"):
        kind(decay_policy=3)
