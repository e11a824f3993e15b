"""Every plot of a probe draws that probe's table, and a probe from elsewhere may state its own."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from torch import nn

from normless.probes import PROBES, Watcher, probe
from normless_lab.plots import PLOTS, Plot, figures_of


class Halves(Watcher):
    """A probe of a user, with its plot."""

    plot = Plot("lines", x="half", y="size", title="Halves")

    def table(self) -> pd.DataFrame:
        return pd.DataFrame({"half": [1, 2], "size": [0.5, 0.25]})


@pytest.fixture(scope="module")
def network() -> nn.Module:
    from normless.models import resnet_cifar

    return resnet_cifar(8, classes=4)


@pytest.mark.parametrize("name", list(PLOTS))
def test_the_plot_of_a_probe_draws_its_table(name: str, network: nn.Module) -> None:
    import torch

    torch.manual_seed(0)
    batch = torch.randn(8, 3, 8, 8), torch.arange(8) % 4
    measured = probe(network, batch, [name])
    drawn = list(figures_of(measured.tables, "none", {name: PROBES[name]}))
    assert [drawn_name for drawn_name, _, _ in drawn] == [name]
    for _, title, axes in drawn:
        assert axes.get_title(loc="left").strip() == title
        axes.figure.draw_without_rendering()  # type: ignore[union-attr]


def test_a_probe_of_a_user_states_its_plot() -> None:
    halves = Halves()
    ((name, title, axes),) = figures_of({"Halves": halves.table()}, "skipinit", {"Halves": halves})
    assert (name, title) == ("Halves", "Halves")
    (line,) = axes.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), [0.5, 0.25])
    assert list(figures_of({"Halves": halves.table()}, "skipinit")) == []
