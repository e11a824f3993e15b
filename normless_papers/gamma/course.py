"""‖γ‖ by role and the variance of the stream over the training of networks with L2 on one γ and without.

What Kim et al. say of them: L2 shrinks the γ that it is on; γ_last sets the variance of a branch (equations 4 and
10), γ_down that after a downsampling block (15 and 17), γ_0 that at the start of the first stage (19), and γ_others,
whose scale the next norm divides out (21), none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.probes import RideAlong
from normless.saving import write_csv
from normless_lab.data import ImageData
from normless_lab.plots import Plot, new_panels
from normless_lab.sweeps import Point
from normless_papers.claims import UNKNOWN, Claim, Estimate, check, larger, replicates
from normless_papers.experiments.effort import TrainingSweeps
from normless_papers.experiments.runs import Runs
from normless_papers.gamma.decay_comparison import BASELINE, INKS, L2, NAMES
from normless_papers.results.reproduction import table_from_dict

# The columns of table 2, by what is decayed besides the weights: the γ of one role.
COLUMNS = MappingProxyType({"gamma_last": "last", "gamma_down": "down", "gamma_0": "stem", "gamma_others": "other"})
# Records of a run, from its first step to its last; blocks in a figure.
RECORDS, _SHOWN = 20, 8
_GAMMAS = ("rate", "seed", "step", "order", "layer", "role", "channels", "gamma_norm")
_STREAM = {
    "stream_channel_variance": "variance",
    "stream_variance": "pooled_variance",
    "stream_second_moment": "second_moment",
    "branch_second_moment": "branch_second_moment",
    "skip_second_moment": "skip_second_moment",
}


_LINES = Plot(
    "lines",
    x="step",
    by="run",
    band="std",
    names="none",
    inks={NAMES[name]: ink for name, ink in INKS.items()},
    x_label="step",
    y_label="",
)


@dataclass(frozen=True)
class Evenly:
    """True at the first and the last of `steps` steps, and at most `records` - 1 evenly spaced ones between."""

    steps: int
    records: int = RECORDS

    def __call__(self, step: int) -> bool:
        """Whether the step, counted from 1, is recorded."""
        places = np.linspace(1, self.steps, min(self.records + 1, self.steps)).round()
        return bool((places == step).any())


@dataclass(frozen=True)
class Course:
    """What was recorded of runs: tidy tables with the labels of a run, its `rate`, `seed` and `step`.

    Attributes:
        labels: the columns of the labels, such as `model` and `l2`.
        gammas: the probe `gammas`, a row per norm.
        stream: a row per block with `name`, and of its output `variance` (of a channel, on average),
            `pooled_variance` and `second_moment`; the second moments of its branch and skip path; `resets`, whether
            its skip path has a γ_down.
    """

    labels: tuple[str, ...]
    gammas: pd.DataFrame
    stream: pd.DataFrame

    @property
    def norms(self) -> pd.DataFrame:
        """‖γ‖ of all γ of a role together, by run, step and role."""
        keys = [*self.labels, "rate", "seed", "step", "role"]
        squares = self.gammas.assign(gamma_norm=self.gammas["gamma_norm"] ** 2)
        table = squares.groupby(keys, sort=False)["gamma_norm"].sum().pow(0.5).reset_index()
        return table[[*keys, "gamma_norm"]]

    def write(self, folder: Path) -> None:
        """Write `gammas.csv` and `stream.csv`."""
        write_csv(self.gammas, folder / "gammas.csv")
        write_csv(self.stream, folder / "stream.csv")

    def groups(self, *labels: str) -> Iterator[tuple[str, Course]]:
        """Yield the runs with equal labels of these names, and the labels as text; all runs without names."""
        names = [name for name in self.labels if name in labels]
        for values in self.gammas[names].drop_duplicates().itertuples(index=False, name=None) if names else [()]:
            here = pd.Series(dict(zip(names, values, strict=True)), dtype=object)
            tables = [table[(table[names] == here).all(axis=1)] for table in (self.gammas, self.stream)]
            yield ", ".join(map(str, values)), Course(self.labels, *tables)

    def draw(self, upper: Callable[[Axes], Any]) -> Axes:
        """Draw ‖γ‖ by role and the variance after blocks over steps, a line per choice with its deviation over seeds.

        Of more blocks than eight those around each reset are drawn, and the last. `upper` draws the first panel.
        """
        norms, stream = self._named(self.norms), self._named(self.stream)
        roles = {column: role for column, role in COLUMNS.items() if role in set(norms["role"])}
        blocks = _shown(stream[["name", "resets"]].drop_duplicates("name"))
        top, legend, *panels = new_panels(2, 1 + ceil(len(roles) / 2) + ceil(len(blocks) / 2), height=2.5)
        upper(top)
        drawn = [(norms[norms["role"] == role], "gamma_norm", f"‖γ_{name[6:]}‖") for name, role in roles.items()]
        place = len(drawn) + len(drawn) % 2
        for axes, (rows, quantity, title) in zip(panels, drawn, strict=False):
            _LINES(rows, axes, y=quantity, title=title)
        for axes, name in zip(panels[place:], blocks, strict=False):
            _LINES(stream[stream["name"] == name], axes, y="variance", title=f"variance after {name}")
        for axes in [*panels[len(drawn) : place], *panels[place + len(blocks) :]]:
            axes.set_axis_off()
        legend.set_axis_off()
        handles, labels = panels[0].get_legend_handles_labels()
        legend.legend(handles, labels, loc="center", frameon=False, title="L2 on", ncols=1)
        return top

    def _named(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the table with the choice of a run as the paper writes it, with its other labels, in `run`."""
        names = [name for name in self.labels if name not in ("model", L2)]
        run = table[L2].map(lambda l2: NAMES.get(l2, l2))
        for name in names:
            run = f"{name} " + table[name].astype(str) + ": " + run
        return table.assign(run=run)

    def checks(self) -> list[Claim]:
        """Check for every network what L2 on one γ does to it and to the variance that it sets, at the last step."""
        others = [name for name in self.labels if name != L2]
        return [outcome for name, course in self.groups(*others) for outcome in course._checks_of(name)]

    def _checks_of(self, name: str) -> list[Claim]:
        norms, checks = self.norms, []
        for column, role in COLUMNS.items():
            if column not in set(norms[L2]) or role not in set(norms["role"]):
                continue
            own, base = (_at_end(norms[norms["role"] == role], "gamma_norm", l2) for l2 in (column, BASELINE))
            checks.append(larger(f"‖{column}‖ of {name} ends smaller with L2 on it than without.", base, own))
            checks += self._variance(name, column, _squared(own, base))
        return checks

    def _variance(self, name: str, column: str, squares: Mapping[int, float]) -> list[Claim]:
        """Check the variance that the γ of a column sets; `squares` has log ratios of its ‖γ‖² by seed."""
        blocks = self.stream.assign(
            share=self.stream["branch_second_moment"] / self.stream["skip_second_moment"],
            branch=self.stream["branch_second_moment"],
        )
        resets, first = blocks["resets"], blocks["block"] == 1
        chosen, quantity, claim = {
            "gamma_last": (blocks, "share", "the branches' variance is a smaller share of their skip paths'"),
            "gamma_down": (blocks[resets], "second_moment", "blocks reset the stream to a smaller variance"),
            # A first block with a γ_down resets what γ_0 sets.
            "gamma_0": (
                blocks[first & ~resets],
                "skip_second_moment",
                "the first stage starts with a smaller variance",
            ),
            "gamma_others": (blocks, "branch", "the branches' variance changes by less than ‖gamma_others‖² does"),
        }[column]
        own, base = (_at_end(chosen, quantity, l2) for l2 in (column, BASELINE))
        if not own.by_seed:
            return []
        claim = f"With L2 on {column} of {name}, {claim}."
        if column != "gamma_others":
            return [larger(claim, base, own)]
        ratios = _log_ratios(own, base)
        if not ratios:
            return [check(claim, None)]
        sizes = [{seed: abs(value) for seed, value in values.items()} for values in (squares, ratios)]
        named = zip(sizes, ("gamma_squared", "branch"), strict=True)
        return [larger(claim, *(replicates(pd.Series(size), name=name) for size, name in named))]


def with_course(training: TrainingSweeps, data: ImageData, folder: Path) -> TrainingSweeps:
    """Add records of γ and the stream of runs on a data set, to be kept in a folder."""
    config: Any = training.sweeps[0].points()[0].config
    steps = config.epochs * data.steps_per_epoch(config.batch_size)
    return replace(training, probes=RideAlong(("stream", "gammas"), Evenly(steps)), folder=folder)


def course_of(runs: Runs, points: Sequence[Point]) -> Course:
    """Return the course of some runs of `with_course`; those that were not recorded are trained."""
    assert runs.laboratory is not None
    labels, parts = runs.axes, []
    folders = runs.training.recorded(runs.laboratory, [point.config for point in points])
    for point, folder in zip(points, folders, strict=True):
        for checkpoint in folder.glob("checkpoint*.pt"):
            # The records are all that is needed, and weights of many runs are large.
            checkpoint.unlink()
        gammas, stream = (_recorded(folder / "probes" / name) for name in ("gammas", "stream"))
        parts.append(_labelled(point, labels, gammas, stream))
    gammas, stream = (pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True))
    columns = [*labels, "rate", "seed", "step", "block", "name", "resets", *_STREAM.values()]
    return Course(tuple(labels), gammas, stream.rename(columns=_STREAM)[columns])


def recorded_ends(labels: Sequence[str], ends: Sequence[tuple[Point, Mapping[str, Any] | None]]) -> Course:
    """Return the course of runs that recorded their ends alone (`PaperResult.records`), without those of None."""
    columns = [*labels, "rate", "seed", "step", "block", "name", "resets", "gamma_last", *_STREAM.values()]
    parts = []
    for point, records in ends:
        if records is None:
            continue
        gammas, stream = (table_from_dict(records[name]) for name in ("gammas", "stream"))
        parts.append(_labelled(point, labels, gammas.assign(step=1), stream.assign(step=1)))
    if not parts:
        return Course(tuple(labels), pd.DataFrame(columns=[*labels, *_GAMMAS]), pd.DataFrame(columns=columns))
    gammas, stream = (pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True))
    return Course(tuple(labels), gammas, stream.rename(columns=_STREAM)[columns])


def _labelled(
    point: Point, labels: Sequence[str], gammas: pd.DataFrame, stream: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Add the labels of a run, its rate and seed, and whether each block resets the variance."""
    down = gammas["layer"][gammas["role"] == "down"].unique()
    resets = [any(layer.startswith(f"{name}.") for layer in down) for name in stream["name"]]
    run = {name: point.labels[name] for name in labels} | {"rate": point.rate, "seed": point.seed}
    return pd.DataFrame({**run, **gammas}), pd.DataFrame({**run, **stream.assign(resets=resets)})


def _recorded(folder: Path) -> pd.DataFrame:
    """Return the rows of a probe in all epochs of a run."""
    return pd.concat([pd.read_parquet(file) for file in sorted(folder.glob("*.parquet"))], ignore_index=True)


def _at_end(table: pd.DataFrame, column: str, l2: str) -> Estimate:
    """Estimate the mean of a column over the rows of the last step by seed; diverged runs have none."""
    rows = table[(table[L2] == l2) & (table["step"] == table["step"].max())]
    values = rows.groupby("seed")[column].mean().dropna()
    return replicates(values, name=l2) if len(values) else UNKNOWN


def _log_ratios(own: Estimate, base: Estimate) -> dict[int, float]:
    """Return log(own / base) by seed."""
    seeds = sorted(own.by_seed.keys() & base.by_seed.keys())
    return {seed: float(np.log(own.by_seed[seed] / base.by_seed[seed])) for seed in seeds}


def _squared(own: Estimate, base: Estimate) -> dict[int, float]:
    return {seed: 2 * value for seed, value in _log_ratios(own, base).items()}


def _shown(blocks: pd.DataFrame) -> list[str]:
    """Return the blocks to draw: all, or of many those before and at a reset, the first and the last."""
    names, resets = list(blocks["name"]), list(blocks["resets"])
    if len(names) <= _SHOWN:
        return names
    ends = [0, len(names) - 1, *(place for at, reset in enumerate(resets) if reset for place in (at - 1, at))]
    return [names[place] for place in sorted({max(place, 0) for place in ends})][:_SHOWN]
