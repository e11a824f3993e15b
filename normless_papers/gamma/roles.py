"""Table 2 and guidelines 1 to 4: L2 on the weights, and on the γ of one role beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import ROLE_INKS
from normless.sweeps import RateGrid, Sweep, SweepResult
from normless_papers.artefact import Context, artefact
from normless_papers.evidence import Evidence
from normless_papers.gamma.comparison import BASELINE, L2, Comparison, compared
from normless_papers.plots import DIFFERENCES
from normless_papers.published import published_as
from normless_papers.run_summary import failures, setup_of
from normless_papers.verdict import Check

# The columns of table 2: what decays beside the weights, and the role of γ that it is.
COLUMNS = MappingProxyType({"gamma_last": "last", "gamma_down": "down", "gamma_0": "stem", "gamma_others": "other"})
INKS = MappingProxyType({name: ROLE_INKS[f"γ {role}"] for name, role in COLUMNS.items()})
# What the guidelines promise of each column.
RAISES = MappingProxyType({"gamma_last": True, "gamma_down": False, "gamma_0": False, "gamma_others": True})

MODELS = MappingProxyType(
    {
        "resnet_18": "normless:resnet(depth=18)",
        "resnet_50": "normless:resnet(depth=50)",
        "resnet_101": "normless:resnet(depth=101)",
        "resnet_152": "normless:resnet(depth=152)",
        "wide_resnet_50_2": "normless:resnet(depth=50, width_per_group=128)",
        "wide_resnet_101_2": "normless:resnet(depth=101, width_per_group=128)",
        "resnext_50_32x4d": "normless:resnet(depth=50, groups=32, width_per_group=4)",
        "resnext_101_32x8d": "normless:resnet(depth=101, groups=32, width_per_group=8)",
    }
)


@dataclass(frozen=True)
class Effort:
    """How much of table 2 is carried out; by default all of it, as far as the paper says how.

    Attributes:
        models: the networks as text, by the table's names.
        data: the data set as text.
        epochs, batch_size, weight_decay: of every run; the paper does not say.
        rates: the learning rates that are tried; the paper does not say.
        replicates: runs that are averaged.
        reduced: what is smaller than in the paper, in words; empty if nothing is.
    """

    models: Mapping[str, str] = field(default_factory=lambda: dict(MODELS))
    data: str = "pets"
    epochs: int = 200
    batch_size: int = 64
    weight_decay: float = 5e-4
    rates: RateGrid = field(default_factory=lambda: RateGrid.powers(-6, -3))
    replicates: int = 3
    reduced: str = ""

    def base(self, context: Context) -> dict[str, Any]:
        """Settings of every run."""
        return {
            "data": context.data_or(self.data),
            "data_root": context.data_root,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "schedule": "cosine",
            "weight_decay": self.weight_decay,
        }


def roles_sweep(context: Context, effort: Effort) -> Sweep:
    """Every network with L2 on its weights, and on the γ of one role beside them; axes `model` and `l2`."""
    columns = {BASELINE: {"decay_policy": "weights"}}
    columns |= {name: {"decay_policy": f"weights+{role}"} for name, role in COLUMNS.items()}
    return Sweep(
        name="gamma/table-2",
        base=effort.base(context),
        axes={"model": {name: {"model": text} for name, text in effort.models.items()}, L2: columns},
        rates=effort.rates,
        replicates=effort.replicates,
        best=effort.replicates,
        seed=context.seed,
    )


def _table_2_checks(comparison: Comparison) -> list[Check]:
    printed = {row["model"]: row for row in published_as("gamma/table-2").rows}
    return [
        _as_published(comparison, model, name, printed[model][f"diff_{name}"])
        for model in comparison.table["model"].unique()
        for name in COLUMNS
    ]


@artefact("gamma/table-2", basis="training", checks=_table_2_checks)
def accuracy_by_role(context: Context, *, effort: Effort) -> Evidence:
    """Test accuracy with L2 on W and one group of γ, and its difference to that with L2 on W alone."""
    result, comparison = roles_compared(context, effort)
    printed = {row["model"]: row for row in published_as("gamma/table-2").rows}
    return Evidence(
        measured=_wide(comparison),
        facts=comparison,
        setup=roles_setup(context, effort, result),
        on=("model",),
        draw=lambda: draw_roles(comparison, {model: printed[model] for model in effort.models}),
        remarks=remarks_of(effort, result),
        reduction=reduction_of(context, effort),
    )


def roles_compared(context: Context, effort: Effort) -> tuple[SweepResult, Comparison]:
    """The sweep of table 2, and its comparison by test accuracy in percent."""
    result = context.lab.run(roles_sweep(context, effort))
    return result, compared(result, "test_accuracy")


def reduction_of(context: Context, effort: Effort) -> str:
    """What is not the paper's, the data that the user asks for included; empty if nothing is."""
    return effort.reduced or ("" if context.keeps(effort.data) else f"{context.data} in the place of {effort.data}.")


def role_checks(comparison: Comparison, column: str) -> list[Check]:
    """A check for every network of what the guideline about one column promises, the printed difference in it."""
    printed = {row["model"]: float(row[f"diff_{column}"]) for row in published_as("gamma/table-2").rows}
    verb = "raises" if RAISES[column] else "lowers"
    found = [
        (
            model,
            comparison.better(
                f"L2 on {column} beside the weights {verb} the test accuracy of {model}.",
                column,
                wanted=RAISES[column],
                model=model,
            ),
        )
        for model in comparison.table["model"].unique()
    ]
    return [replace(one, numbers={**one.numbers, "published_difference": printed[model]}) for model, one in found]


def roles_setup(context: Context, effort: Effort, result: SweepResult) -> dict[str, Any]:
    """How a sweep by roles was carried out."""
    reduced = {"reduced": effort.reduced} if effort.reduced else {}
    return setup_of(context.lab, result) | reduced


def remarks_of(effort: Effort, result: SweepResult) -> tuple[str, ...]:
    """What a reader of such a sweep must know."""
    unknown = (
        "The paper's appendix with λ, learning rates, batch size and epochs is not at hand, and whether it trains "
        "from scratch is not said; these are ours, and the networks start from random weights."
    )
    found = [unknown, *failures(result)]
    if effort.reduced:
        found.append(f"Not the paper's setup: {effort.reduced}. Its numbers are those of full networks on the pets.")
    return tuple(found)


def draw_roles(comparison: Comparison, printed: Mapping[str, Mapping[str, Any]], column: str | None = None) -> Axes:
    """The differences to L2 on the weights alone, those of one column if it is named, beside the published ones."""
    table = comparison.differences("model", L2)
    table = table if column is None else table[table[L2] == column]
    published = [float(printed[row["model"]][f"diff_{row[L2]}"]) for row in table.to_dict("records")]
    return DIFFERENCES(
        table.assign(published=published),
        beside="published",
        y=L2,
        inks=INKS,
        title="L2 on the γ of one role",
        x_label="test accuracy less that with L2 on the weights alone, points; diamonds: published",
        groups="model",
    )


def _as_published(comparison: Comparison, model: str, column: str, printed: float) -> Check:
    verb = "raises" if printed > 0 else "lowers"
    claim = f"L2 on {column} {verb} the test accuracy of {model}, in the paper by {abs(printed):.2f} points."
    return comparison.better(claim, column, wanted=printed > 0, model=model)


def _wide(comparison: Comparison) -> pd.DataFrame:
    """A row per network with the columns of the paper's table, and deviations and rates beside them."""
    rows = []
    for model, table in comparison.table.groupby("model", sort=False):
        row: dict[str, Any] = {"model": model}
        for one in table.to_dict("records"):
            name = one[L2] if one[L2] == BASELINE else f"W_{one[L2]}"
            row |= {name: one["mean"], f"{name}_deviation": one["deviation"]}
            if one[L2] != BASELINE:
                row |= {f"diff_{one[L2]}": one["difference"], f"diff_{one[L2]}_error": one["error"]}
            row |= {f"{name}_rate": one["rate"], f"{name}_n": one["n"]}
        rows.append(row)
    return pd.DataFrame(rows)
