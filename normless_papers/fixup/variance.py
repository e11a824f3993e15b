"""Equation 1: without normalization the squared norm of the activations doubles with every block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from normless.models import dense
from normless.probes import probe
from normless.sweeps import convert
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, over_draws, within
from normless_papers.plots import GROWTH
from normless_papers.seeded_inputs import seeded

# log₂ of the growth per block by each network's law.
LAWS = {"none": 1.0, "sqrt2": 0.0, "fixup": 0.0}


# How far log₂ of the growth per block, and the ratio of variances, may be from their laws.
_TOLERANCE = 0.05


@dataclass(frozen=True)
class Growth:
    """What one draw after the other gave.

    Attributes:
        ratio: of the second moments of branch and skip path, without normalization; the mean over blocks.
        per_block: log₂ of the growth of the second moment per block, by scheme.
    """

    ratio: Estimate
    per_block: Mapping[str, Estimate]


def _checks(found: Growth) -> list[Check]:
    names = {"none": "Without normalization", "sqrt2": "With sums times √½", "fixup": "With Fixup"}
    words = {scheme: "doubles" if law else "stays as it is" for scheme, law in LAWS.items()}
    return [
        within(
            f"Var[F(x)|x] is Var[x]: their ratio is 1, to {_TOLERANCE:.0%}.",
            found.ratio, 1 - _TOLERANCE, 1 + _TOLERANCE,
        ),
        *(
            within(
                f"{names[scheme]} the second moment {words[scheme]} from block to block: log₂ of its growth per "
                f"block, to {_TOLERANCE:g}.",
                found.per_block[scheme], law - _TOLERANCE, law + _TOLERANCE,
            )
            for scheme, law in LAWS.items()
        ),
    ]  # fmt: skip


@artefact("fixup/equation-1", basis="measurement", checks=_checks)
def doubling(context: Context, *, blocks: int, width: int, batch: int, draws: int) -> Evidence:
    """‖x_l‖² is 2ˡ‖x_0‖² with He's initialization, ‖x_0‖² with sums times √½ and with Fixup."""
    growths: dict[str, list[Any]] = {scheme: [] for scheme in LAWS}
    ratios = []
    with seeded(context.seed):
        for _ in range(draws):
            original, inputs = dense(blocks, width, branch_layers=2), torch.randn(batch, 100)
            for scheme, found in growths.items():
                table = probe(convert(original, scheme), inputs, ["signal"]).signal
                start = table["skip_second_moment"].iloc[0]
                found.append([1.0, *table["sum_second_moment"] / start])
                if scheme == "none":
                    ratios.append(float((table["branch_second_moment"] / table["skip_second_moment"]).mean()))
    logs = {scheme: np.log2(np.asarray(found, dtype=float)) for scheme, found in growths.items()}
    table = pd.concat([_table(scheme, found) for scheme, found in logs.items()], ignore_index=True)
    facts = Growth(over_draws(ratios), {scheme: over_draws(found[:, -1] / blocks) for scheme, found in logs.items()})
    per_block = 2 ** facts.per_block["none"].mean
    published = pd.DataFrame(
        [{"quantity": "Var[x_{l+1}]", "value": f"{per_block:.4f} Var[x_l]", "scheme": "none", "law": 2.0}]
    )
    return Evidence(
        measured=pd.concat([published, table], ignore_index=True),
        facts=facts,
        setup={
            "network": f"dense, {blocks} blocks of width {width}, two ReLU → linear on every branch, He normal",
            "inputs": f"batch of {batch} vectors of 100 independent N(0, 1)",
            "draws": draws,
            "growth": "geometric mean over draws of the second moment over that of x₀",
        },
        on=("quantity",),
        draw=lambda: GROWTH(table),
        remarks=("Of a product of random matrices the logarithm's mean over draws is compared, not one draw.",),
    )


def _table(scheme: str, logs: Any) -> pd.DataFrame:
    block = np.arange(logs.shape[1])
    return pd.DataFrame(
        {
            "quantity": "growth of the second moment",
            "scheme": scheme,
            "block": block,
            "growth": 2.0 ** logs.mean(0),
            "deviation_of_log2": logs.std(0, ddof=1) if len(logs) > 1 else np.nan,
            "law": 2.0 ** (LAWS[scheme] * block),
        }
    )
