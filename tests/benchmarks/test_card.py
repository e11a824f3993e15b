"""The benchmarks of a card, tiny and on the CPU; a machine without a card is told so."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch

from benchmarks.card.measure import measure_card
from benchmarks.card.runs import Counter
from benchmarks.card.settings import CardBench
from benchmarks.card.steps import _judged, forward_flops
from normless_lab.sweeps._card import SETTLED

TINY: dict[str, Any] = {"architectures": ((8, 0), (10, 1)), "batch_sizes": (2,), "image_size": 8, "rounds": 2}
TINY |= {"replays": 1, "matrix": 32, "runs_together": (2, 2), "run_data": "digits(train=20, test=10)", "epochs": 2}
TINY |= {"data": "digits(train=40, test=20)", "device": "cpu"}


def test_operations_of_a_pass() -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(80, 7))
    assert forward_flops(network, torch.randn(1, 3, 4, 4)) == 2 * (16 * 5 * 27 + 80 * 7)


def test_aims_are_judged() -> None:
    ratios = {"bare": 1.0, "skipinit(alpha=1)": 1.04, "fixup": 1.3, "batch_norm": 1.2}
    judged = _judged([{"scheme": name, "ratio": ratio} for name, ratio in ratios.items()])
    rows = {row["scheme"]: row for row in judged}
    assert rows["skipinit(alpha=1)"]["result"] == rows["skipinit(alpha=1)"]["below_batch_norm"] == "pass"
    assert rows["fixup"]["result"] == rows["fixup"]["below_batch_norm"] == "miss"
    assert "result" not in rows["batch_norm"]
    assert _judged([{"scheme": "fixup"}]) == [{"scheme": "fixup"}]


def test_steps_are_counted_while_all_runs_are_under_way() -> None:
    times = count()
    counter = Counter(2, lambda: float(next(times)))
    for run in "ab":
        counter.begin(run)
    for _ in range(SETTLED + 50):
        counter.count("a")
    assert counter.steps_per_second is None
    for _ in range(SETTLED + 3):
        counter.count("b")
    assert counter.steps_per_second == 1
    counter.end("a")
    counter.count("b")
    assert next(times) == 4


def test_seconds_to_an_accuracy() -> None:
    table = measure_card(CardBench(parts=("accuracy",), target=0.0, **TINY))
    assert table["scheme"].tolist() == ["batch_norm", "fixup"]
    assert table["result"].tolist() == ["pass", "pass"]
    assert (table["seconds"] > 0).all()
    assert (table["seconds"] <= table["seconds_of_all"]).all()
    assert table["best_accuracy"].between(0, 1).all()
    assert table["epochs"].tolist() == [2, 2]
    missed = measure_card(CardBench(parts=("accuracy",), target=1.1, trained=("fixup",), **TINY))
    assert (missed["seconds"][0], missed["epoch"][0], missed["result"][0]) == (None, None, "miss")
