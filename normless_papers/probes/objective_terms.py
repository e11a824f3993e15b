"""The terms of the training objective: the loss on the data and the L2 term of every parameter group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import Loss
from normless_papers.probes.network_function import as_function


def loss_terms(
    model: nn.Module,
    groups: Iterable[Mapping[str, Any]],
    inputs: Any,
    targets: Any,
    *,
    loss: Loss = F.cross_entropy,
    training: bool = True,
) -> pd.DataFrame:
    """Measure the loss on a batch and the L2 term Σ λ/2·‖p‖² of every parameter group (ZeroInit, section 4).

    An optimizer that adds λ·p to the gradient minimizes the L2 term; decoupled decay, as in AdamW, does not. For
    layers with He's variance 2/fan-in the term is λ·Σ out-channels, with 2/fan-out λ·Σ in-channels, so it grows with
    the number of layers. The network's state is restored.

    Args:
        model, inputs, targets, loss, training: as for `normless.probes.observe`.
        groups: parameter groups, as those of `normless.param_groups` or an optimizer's `param_groups`: `params`
            (parameters, or pairs of name and parameter), `weight_decay` λ (else ValueError), and perhaps `name`.

    Returns:
        A row `data`, then a row `l2` per group: its name or number, its λ, the value, and its share of the total.
    """
    with torch.no_grad(), as_function(model, training=training) as logits:
        rows = [("data", "", float("nan"), float(loss(logits({}, inputs), targets)))]
    for index, group in enumerate(groups):
        name = str(group.get("name", index))
        if "weight_decay" not in group:
            raise ValueError(
                f"The parameter group {name} has no weight_decay; pass the groups of normless.param_groups, or those "
                "of an optimizer, optimizer.param_groups."
            )
        decay = float(group["weight_decay"])
        term = decay / 2 * sum(_square(parameter) for parameter in group["params"]) if decay else 0.0
        rows.append(("l2", name, decay, term))
    table = pd.DataFrame(rows, columns=["term", "group", "weight_decay", "value"])
    whole = sum(table["value"])
    return table.assign(share=table["value"] / whole if whole else float("nan"))


def l2_share(table: pd.DataFrame) -> float:
    """Return the share of all L2 terms, between 0 and 1, from the table of `loss_terms`."""
    return float(table.loc[table["term"] == "l2", "share"].sum())


def _square(parameter: Tensor | tuple[str, Tensor]) -> float:
    tensor = parameter if isinstance(parameter, Tensor) else parameter[1]
    return float(tensor.detach().double().square().sum())
