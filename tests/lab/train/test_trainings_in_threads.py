"""Trainings in threads of one process run one after another, and end bit for bit as they do alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gallery import ROWS
from run_helpers import CONFIG, OnEpoch, without_seconds
from torch import Tensor

import normless as nl
from normless_lab.train import EpochRow, TrainConfig, train, trained_network
from normless_lab.train._directory import RunDirectoryError
from normless_lab.train._execution import are_flushed

# Of another precision, with random numbers, and without.
CONFIGS = (
    replace(CONFIG, scheme="batch_norm", precision="64-true", dropout=0.2),
    replace(CONFIG, scheme="skipinit", seed=1),
)


# Residual blocks that must be traced.
NETWORK = ROWS["layer norm"]


def end_of(config: TrainConfig, folder: Path) -> tuple[Any, dict[str, Tensor]]:
    result = without_seconds(train(config, folder))
    return result, trained_network(folder).state_dict()


def assert_same(one: tuple[Any, dict[str, Tensor]], other: tuple[Any, dict[str, Tensor]]) -> None:
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(value, other[1][name]) for name, value in one[1].items())


def test_trainings_and_conversions_at_once(tmp_path: Path) -> None:
    alone = [end_of(config, tmp_path / f"alone {number}") for number, config in enumerate(CONFIGS)]
    network, x, ended = NETWORK.network(), NETWORK.example()[0][0], threading.Event()
    state = torch.get_rng_state()
    expected = nl.convert(network, "skipinit", x).state_dict()

    def convert() -> None:
        while not ended.is_set():
            made = nl.convert(network, "skipinit", x).state_dict()
            assert all(torch.equal(value, expected[name]) for name, value in made.items())

    with ThreadPoolExecutor(len(CONFIGS) + 1) as pool:
        runs = [pool.submit(end_of, config, tmp_path / f"beside {number}") for number, config in enumerate(CONFIGS)]
        conversions = pool.submit(convert)
        try:
            beside = [run.result() for run in runs]
        finally:
            ended.set()
        conversions.result()
    for one, other in zip(alone, beside, strict=True):
        assert_same(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32
    assert not are_flushed()


def test_a_callback_may_call_the_library(tmp_path: Path) -> None:
    network, x = NETWORK.network(), NETWORK.example()[0][0]
    plain = end_of(CONFIG, tmp_path / "plain")
    depths: list[int] = []

    def measure(row: EpochRow) -> None:
        depths.append(nl.residual_map(network, x).depth)
        train(replace(CONFIG, epochs=1, precision="64-true"), tmp_path / f"inner {row.epoch}")

    result = without_seconds(train(CONFIG, tmp_path / "outer", listeners=[OnEpoch(measure)]))
    assert depths == [nl.residual_map(network, x).depth] * 2
    assert_same(plain, (result, trained_network(tmp_path / "outer").state_dict()))


def test_one_folder_takes_one_training(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(train, CONFIG, tmp_path) for _ in range(3)]
        ends = [run.exception() or without_seconds(run.result()) for run in runs]
    finished = [end for end in ends if not isinstance(end, BaseException)]
    assert all(isinstance(end, RunDirectoryError) for end in ends if isinstance(end, BaseException))
    assert finished
    assert all(end == without_seconds(train(CONFIG, tmp_path)) for end in finished)
