"""Every plot of a probe draws that probe's table, and a probe from elsewhere may state its own."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from page_reader import Reader
from torch import nn

import normless as nl
from normless.models import resnet_cifar
from normless.probes import PROBES, Watcher, probe
from normless_lab.plots import PLOTS, Plot
from normless_lab.plots._plot import figures_of

BATCH = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4


class Halves(Watcher):
    """A probe of a user, with its plot."""

    plot = Plot("lines", x="half", y="size", title="Halves")

    def table(self) -> pd.DataFrame:
        return pd.DataFrame({"half": [1, 2], "size": [0.5, 0.25]})


class Silent(Watcher):
    """A probe without a plot."""

    def table(self) -> pd.DataFrame:
        return pd.DataFrame({"value": [1]})


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return resnet_cifar(8, classes=4)


@pytest.mark.parametrize("name", list(PLOTS))
def test_the_plot_of_a_probe_draws_its_table(name: str, network: nn.Module) -> None:
    measured = probe(network, BATCH, [name])
    ((drawn, title, axes),) = figures_of(measured.tables, "none", {name: PROBES[name]})
    assert (drawn, axes.get_title(loc="left").strip()) == (name, title)
    axes.figure.draw_without_rendering()


def test_a_probe_of_a_user_states_its_plot() -> None:
    halves = Halves()
    ((name, title, axes),) = figures_of({"Halves": halves.table()}, "skipinit", {"Halves": halves})
    assert (name, title) == ("Halves", "Halves")
    (line,) = axes.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), [0.5, 0.25])
    assert list(figures_of({"Halves": halves.table()}, "skipinit")) == []


def test_plot_shows_measurements_and_maps_as_images(network: nn.Module) -> None:
    measured = nl.probe(network, BATCH)
    figures = nl.plot(measured, scheme="skipinit")
    titles = [title for _, title, _ in figures_of(measured.tables, "skipinit")]
    assert [axes.get_title(loc="left").strip() for axes in figures] == titles
    (drawn,) = nl.plot(nl.residual_map(network, BATCH[0]))
    assert drawn.get_title(loc="left").strip() == "Residual structure"
    images = Reader(figures._repr_html_()).tags
    assert [tag for tag, _ in images] == ["img"] * len(figures)


def test_plot_draws_a_watched_training_and_refuses_what_it_cannot_draw(network: nn.Module) -> None:
    images, labels = BATCH
    model = copy.deepcopy(network)
    with nl.watch(model, interval=1) as watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses = []
        for _ in range(3):
            loss = watch.loss(torch.nn.functional.cross_entropy(model(images), labels))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    (axes,) = nl.plot(watch)
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), losses, rtol=1e-6)
    with pytest.raises(ValueError, match=r"a probe that has a plot and rows .* got Silent"):
        nl.plot(nl.probe(network, (images, labels), [Silent()]))
