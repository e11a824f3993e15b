"""Networks with weights, trained further with L2 by role, for table 2 and figure 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from matplotlib.axes import Axes

from normless_lab.data import ImageData, load_data
from normless_lab.plots import save_png, save_svg
from normless_papers.artefact import Context, Evidence
from normless_papers.experiments.effort import Effort
from normless_papers.gamma.course import Course, course_of, recorded_ends
from normless_papers.gamma.decay_comparison import (
    BASELINE,
    INKS,
    L2,
    NAMES,
    POINTS,
    DecayComparison,
)
from normless_papers.gamma.pretrained import IMAGENET, TORCHVISION, PretrainedWeightsError, fitted, networks_in
from normless_papers.networks.seeded_inputs import seeded
from normless_papers.plots import DIFFERENCES

# What a person with weights also wants to know: L2 on every γ, and on those that the guidelines allow.
FURTHER = MappingProxyType({"gamma_all": "weights+last+down+stem+other", "guidelines": "weights+last+other"})


@dataclass(frozen=True)
class Recorded(DecayComparison):
    """A comparison of trainings, and the course of each choice at its best rate, or its end alone."""

    course: Course

    @classmethod
    def of(cls, comparison: DecayComparison) -> Self:
        """Add the ends that the runs of a comparison at their best rates recorded."""
        runs, points = comparison.runs, comparison.best_points
        assert runs.laboratory is not None
        results = {
            row.hash: row.result or {} for row in runs.laboratory.carry_out([point.config for point in points])
        }
        ends = [(point, results.get(point.config.hash, {}).get("records")) for point in points]
        return cls(runs, comparison.metric, recorded_ends(runs.axes, ends))


@dataclass(frozen=True)
class Transfer(Recorded):
    """A comparison of trainings of networks with weights, which record their course."""

    @classmethod
    def of(cls, comparison: DecayComparison) -> Self:
        """Add the course of the runs at their best rates."""
        course = course_of(comparison.runs, comparison.best_points)
        return cls(comparison.runs, comparison.metric, course)

    def with_course(self, evidence: Evidence, title: str, folder: Path) -> Evidence:
        """Return the evidence with the course in its figure, and in `gammas.csv` and `stream.csv` in a folder."""
        self.course.write(folder)
        (_, first), *others = self.course.groups("model")
        rows = self.table[self.table[L2] != BASELINE].reset_index(drop=True)
        named, inks = rows.assign(run=rows[L2].map(NAMES)), {NAMES[name]: ink for name, ink in INKS.items()}
        style: dict[str, Any] = {"y": "run", "inks": inks, "groups": self.runs.axes[0], "x_label": POINTS}

        def draw(course: Course) -> Axes:
            return course.draw(lambda axes: DIFFERENCES(named, axes, title=title, **style))

        for name, course in others:
            axes = draw(course)
            save_svg(axes, folder / f"course-{name}.svg")
            save_png(axes, folder / f"course-{name}.png")
        files = "gammas.csv and stream.csv have the norms of γ and the variances of the stream over training"
        figures = "; course-NAME.png draws those of further networks" if others else ""
        return replace(evidence, draw=lambda: draw(first), remarks=(*evidence.remarks, f"{files}{figures}."))


def effort_of(context: Context, effort: Effort) -> Effort:
    """Return the effort to train the user's weights further, which says so."""
    own = effort.of_weights
    if context.weights == TORCHVISION and context.budget == "paper":
        return own
    steps = f"trained further for {own.epochs} epochs of {own.data_in(context)}"
    return replace(own, reduced=f"the weights of {context.weights}, {steps}.")


def data_of(context: Context, effort: Effort) -> ImageData:
    """Load the data set of an effort."""
    return load_data(effort.data_in(context), root=context.data_root)


def networks_for(context: Context, data: ImageData, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Save the user's networks, or torchvision's of these names, fitted to `data`; return their folders by name."""
    weights = str(context.weights)
    if weights == TORCHVISION:
        sources = {name: (TORCHVISION, IMAGENET.replace("resnet50", in_torchvision(name))) for name in names}
    else:
        sources = {name: (source, "") for name, source in networks_in(weights).items()}
    folder = context.directory / "pretrained"
    # A new classifier is the same in every call, and for every seed of the trainings.
    with seeded(context.seed):
        return {name: {"model": str(fitted(*source, data, folder / name))} for name, source in sources.items()}


def in_torchvision(name: str) -> str:
    """Return torchvision's name of a network of table 2."""
    return name.replace("net_", "net", 1).replace("next_", "next", 1)


def network_for(context: Context, data: ImageData, name: str) -> str:
    """Return as `networks_for` the user's one network, or the one of several that has this name."""
    networks = networks_for(context, data, [name])
    if len(networks) > 1 and name not in networks:
        raise PretrainedWeightsError(
            f"Expected one network or {name} in {context.weights}, got {', '.join(networks)}."
        )
    return networks.get(name, next(iter(networks.values())))["model"]
