"""The figures of sweeps: accuracies, optima and learning rates against depth, batch size, rate or epoch.

All draw on `ax` or on a new figure, take the keyword arguments of `Style`, such as `title` and `inks`, and raise a
ValueError if the table lacks a column or is empty. `series` is the column of the names of the lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots._frame import label_of
from normless_lab.plots._frames import Law, Style, require_columns
from normless_lab.plots._line_plots import lines, measured_on_predicted
from normless_lab.plots._point_plots import points

_RATES = ("rate", "rate_low", "rate_high")


def accuracy_against_epoch(
    epochs: pd.DataFrame,
    ax: Axes | None = None,
    *,
    series: str,
    columns: Sequence[str] = ("test_accuracy", "training_accuracy"),
    **frame: Unpack[Style],
) -> Axes:
    """Draw mean accuracies against the epoch with a band of one sample standard deviation, a line per series.

    The table has a row per run and epoch: the column `series`, ``epoch`` and the accuracies (0..1) of `columns`, of
    which the second is dashed.
    """
    require_columns(epochs, (series, "epoch", *columns), "Accuracy against epoch")
    words = [column.removesuffix("_accuracy") for column in columns]
    styles = "; ".join(f"{word}: {style}" for word, style in zip(words, ("solid", "dashed"), strict=False))
    return lines(
        epochs.assign(**{column: 100 * epochs[column] for column in columns}),
        ax,
        x="epoch",
        y=columns,
        by=series,
        band="std",
        y_limits=(0, 100),
        x_label="epoch" if len(columns) == 1 else f"epoch ({styles})",
        y_label=f"{words[0]} accuracy (%)" if len(columns) == 1 else "accuracy (%)",
        **frame,  # type: ignore[misc]
    )


def accuracy_against_rate(runs: pd.DataFrame, ax: Axes | None = None, *, series: str, **frame: Unpack[Style]) -> Axes:
    """Draw test accuracy against the learning rate, a line per series through its means; hollow runs did not train.

    The table has a row per run: the column `series`, ``rate``, ``outcome`` and ``test_accuracy`` (in percent).
    """
    require_columns(runs, (series, "rate", "outcome", "test_accuracy"), "Accuracy against the learning rate")
    return points(
        runs.assign(failed=runs["outcome"] != "trained"),
        ax,
        x="rate",
        y="test_accuracy",
        by=series,
        summary="mean",
        hollow="failed",
        log="x",
        y_limits=(0, 100),
        x_label="learning rate (hollow: diverged or at chance)",
        y_label="test accuracy (%)",
        **frame,  # type: ignore[misc]
    )


def optimum_against(
    optima: pd.DataFrame,
    ax: Axes | None = None,
    *,
    series: str,
    across: str,
    **frame: Unpack[Style],
) -> Axes:
    """Draw the result at the optimal learning rate, a line per series with its deviations; hollow did not train.

    Args:
        optima: a row per combination: the columns `series` and `across`, `mean` (not finite for a gap), `deviation`
            (NaN of a single run) and `trainable`.
        across: a numeric column such as depth or batch_size; logarithmic.
        frame: as in the grammars; a `y_label` with % limits the bars to 0 to 100, any other to above 0.
    """
    require_columns(optima, (series, across, "mean", "deviation", "trainable"), "The figure of optima")
    bounds = (0, 100) if "%" in frame.get("y_label", "") else (0, None)
    return lines(
        optima.assign(untrained=~optima["trainable"].astype(bool)),
        ax,
        x=across,
        y="mean",
        by=series,
        error="deviation",
        hollow="untrained",
        named=_with_blanks,
        log="x",
        bounds=bounds,
        **frame,  # type: ignore[misc]
    )


def rate_against(
    optima: pd.DataFrame,
    ax: Axes | None = None,
    *,
    series: str,
    across: str,
    **frame: Unpack[Style],
) -> Axes:
    """Draw the optimal learning rate, a line per series; bars reach over all rates within one deviation of it.

    Args:
        optima: a row per combination: the columns `series` and `across`, `rate`, `rate_low`, `rate_high` and
            `trainable`. What could not be trained is left out.
        across: a numeric column; logarithmic. For batch sizes a dotted line shows proportional rates, through the
            lowest rate at the smallest.
    """
    require_columns(optima, (series, across, *_RATES, "trainable"), "The figure of rates")
    exponents = optima.assign(**{name: np.log2(optima[name].astype(float)) for name in _RATES})
    trained = exponents[exponents["trainable"].astype(bool)]
    first = float(optima[across].min())
    start = float(trained.loc[trained[across] == trained[across].min(), "rate"].min())
    low, high = float(trained["rate_low"].min()), float(trained["rate_high"].max())
    proportional = across == "batch_size"
    if proportional:
        high = max(high, start + float(np.log2(optima[across].max() / first)))
    return lines(
        trained if len(trained) else exponents.assign(rate=np.nan),
        ax,
        x=across,
        y="rate",
        by=series,
        error=("rate_low", "rate_high"),
        named=_with_blanks,
        log="x",
        y_ticks="powers of 2",
        # The neighbours of a single rate give the axis its scale.
        y_limits=(low - 0.4, high + 0.4) if high - low > 1 else (round(low) - 1.2, round(low) + 1.2),
        laws=[Law(f"∝ {label_of(across)}", lambda x: start + np.log2(x / first))] if proportional else (),
        y_label="optimal learning rate",
        **frame,  # type: ignore[misc]
    )


def skip_variance_against_block(
    signal: pd.DataFrame, ax: Axes | None = None, *, laws: Mapping[str, str] | None = None
) -> Axes:
    """Draw skip-path variance against block, both logarithmic: measured points and predicted lines.

    The axis ends at four times the number of blocks, above any normalized network.

    Args:
        signal: a row per scheme and block: ``scheme``, ``block`` (1..L), ``skip_variance`` (over batch, channels
            and positions, where the branch is added), ``predicted_skip_variance`` and optionally
            ``law_skip_variance``, the law of an idealized network, drawn dotted.
        laws: the law in words per scheme, as in ``{"none": "2^d"}``, written beside its name.
    """
    values = ["skip_variance", "predicted_skip_variance"]
    require_columns(signal, ("scheme", "block", *values), "Skip variance against block")
    blocks = int(signal["block"].max())
    numbers = signal[values].where(np.isfinite(signal[values]) & (signal[values] > 0))
    start = float(np.nanmin([numbers[signal["block"] == signal["block"].min()].min().min(), 1.0]))
    shown = numbers.where((numbers >= start / 100) & (numbers <= 4 * blocks))
    low = float(np.nanmin([shown.min().min(), 1.0])) / 2
    powers = [2**power for power in range(blocks.bit_length()) if 2**power < blocks / 1.7]
    texts = laws or {}
    return measured_on_predicted(
        signal,
        ax,
        x="block",
        measured="skip_variance",
        by="scheme",
        law="law_skip_variance" if "law_skip_variance" in signal else None,
        named=lambda scheme: f"{scheme}  {texts[scheme]}" if scheme in texts else scheme,
        log="xy",
        x_limits=(0.9, max(blocks, 2) * 1.1),
        y_limits=(low, max(4.0 * blocks, 1000 * low)),
        x_ticks={place: f"{place}" for place in (*powers, blocks)},
        title="Signal at initialization",
        y_label="variance on the skip path",
    )


def _with_blanks(name: str, _: float) -> str:
    return name.replace("_", " ")
