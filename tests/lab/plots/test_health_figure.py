"""The figure of `nl.diagnose_trained`: a strip for each quantity, layers beyond a limit named."""

from __future__ import annotations

import pandas as pd

import normless as nl
from normless.health import Health
from normless.health.limits import DEAD, QUANTITIES


def report(layers: int) -> Health:
    rows = [
        {"layer": f"model.h.{at // 4}.part{at % 4}", "kind": "weight", "dead": 0.9 if at == 5 else 0.1, "ratio": 1.0}
        for at in range(layers)
    ]
    rows += [{"layer": "model.h.0.norm", "kind": "norm", "gamma_zero": 0.0}]
    return Health((), (), table=pd.DataFrame(rows, columns=["layer", "kind", *QUANTITIES]), passes=1)


def test_strips_limits_and_names() -> None:
    (axes,) = nl.plot(report(layers=40))
    figure = axes.get_figure(root=True)
    assert figure is not None
    strips = [each.get_title(loc="left") for each in figure.axes]
    assert strips == [QUANTITIES["dead"].words, QUANTITIES["ratio"].words]
    assert [note.get_text() for note in axes.texts] == ["model.h.1.part1"]
    assert any(list(line.get_ydata()) == [DEAD, DEAD] for line in axes.lines)
    # What is zero everywhere has no strip.
    assert QUANTITIES["gamma_zero"].words in figure.axes[-1].get_xlabel()
