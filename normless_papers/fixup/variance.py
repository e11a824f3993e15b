"""Fixup, equation (1): without normalization the second moment of the activations doubles with every block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from normless.models import dense
from normless.probes import probe
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network, Seeds
from normless_papers.claims import over_draws
from normless_papers.evidence import with_quantities
from normless_papers.networks.seeded_inputs import convert, seeded
from normless_papers.plots import GROWTH

# log₂ of the growth per block by each network's law.
LAWS = {"none": 1.0, "sqrt2": 0.0, "fixup": 0.0}


@artefact(
    "fixup/equation-1",
    basis="measurement",
)
def doubling(
    context: Context, *, blocks: Network[int], width: Network[int], batch: int, draws: Seeds[int]
) -> Evidence:
    growths: dict[str, list[list[float]]] = {scheme: [] for scheme in LAWS}
    ratios = []
    with seeded(context.seed):
        for _ in range(draws):
            original, inputs = dense(blocks, width, branch_layers=2), torch.randn(batch, 100)
            for scheme, curves in growths.items():
                table = probe(convert(original, scheme), inputs, ["signal"]).signal
                curves.append([1.0, *table["sum_second_moment"] / table["skip_second_moment"].iloc[0]])
                if scheme == "none":
                    ratios.append(float((table["branch_second_moment"] / table["skip_second_moment"]).mean()))
    table = pd.concat([_table(scheme, curves) for scheme, curves in growths.items()], ignore_index=True)
    facts = {
        scheme: over_draws(np.log2([curve[-1] for curve in curves]) / blocks) for scheme, curves in growths.items()
    }
    published = {"Var[x_{l+1}]": f"{2 ** facts['none'].mean:.4f} Var[x_l]"}
    return Evidence(
        measured=with_quantities(published, table),
        facts=facts | {"ratio": over_draws(ratios)},
        setup={
            "network": f"dense, {blocks} blocks of width {width}, two ReLU → linear on every branch, He normal",
            "inputs": f"batch of {batch} vectors of 100 independent N(0, 1)",
            "draws": draws,
            "growth": "geometric mean over draws of the second moment over that of x₀",
        },
        draw=lambda: GROWTH(table),
    )


def _table(scheme: str, curves: Sequence[Sequence[float]]) -> pd.DataFrame:
    logs = np.log2(curves)
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
