"""Equation 1: without normalization the squared norm of the activations doubles with every block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from normless import convert
from normless.models import dense
from normless.papers.artefact import Context, artefact
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.verdict import Check, close
from normless.probes import signal_table
from normless.report.probes.growth import growth_against_block

# log₂ of the growth per block by each network's law.
LAWS = {"none": 1.0, "sqrt2": 0.0, "fixup": 0.0}


@artefact("fixup/equation-1", basis="measurement")
def doubling(context: Context, *, blocks: int, width: int, batch: int, draws: int) -> Evidence:
    """‖x_l‖² is 2ˡ‖x_0‖² with He's initialization, ‖x_0‖² with sums times √½ and with Fixup."""
    growths: dict[str, list[Any]] = {scheme: [] for scheme in LAWS}
    branches = []
    with seeded(context.seed):
        for _ in range(draws):
            original, inputs = dense(blocks, width, branch_layers=2), torch.randn(batch, 100)
            for scheme, found in growths.items():
                table = signal_table(convert(original, scheme), inputs)
                start = table["skip_second_moment"].iloc[0]
                found.append([1.0, *table["sum_second_moment"] / start])
                if scheme == "none":
                    branches.append((table["branch_second_moment"] / table["skip_second_moment"]).to_numpy(float))
    logs = {scheme: np.log2(np.asarray(found, dtype=float)) for scheme, found in growths.items()}
    table = pd.concat([_table(scheme, found) for scheme, found in logs.items()], ignore_index=True)
    ratio = float(np.mean(branches))
    per_block = float(np.mean(logs["none"][:, -1])) / blocks
    published = pd.DataFrame(
        [{"quantity": "Var[x_{l+1}]", "value": f"{2**per_block:.4f} Var[x_l]", "scheme": "none", "law": 2.0}]
    )
    return Evidence(
        measured=pd.concat([published, table], ignore_index=True),
        checks=(
            close("Var[F(x)|x] is Var[x]: their mean ratio is 1, to 5 %.", ratio, 1, relative=0.05),
            *(_rate(scheme, found, blocks) for scheme, found in logs.items()),
        ),
        setup={
            "network": f"dense, {blocks} blocks of width {width}, two ReLU → linear on every branch, He normal",
            "inputs": f"batch of {batch} vectors of 100 independent N(0, 1)",
            "draws": draws,
            "seed": context.seed,
            "growth": "geometric mean over draws of the second moment over that of x₀",
        },
        on=("quantity",),
        draw=lambda: growth_against_block(table),
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


def _rate(scheme: str, logs: Any, blocks: int) -> Check:
    names = {"none": "Without normalization", "sqrt2": "With sums times √½", "fixup": "With Fixup"}
    law = "doubles" if LAWS[scheme] else "stays as it is"
    return close(
        f"{names[scheme]} the second moment {law} from block to block: log₂ of its growth per block, to 0.05.",
        float(logs[:, -1].mean()) / blocks,
        LAWS[scheme],
        absolute=0.05,
    )
