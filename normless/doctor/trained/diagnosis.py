"""`nl.diagnose_trained`: is the network of a checkpoint healthy?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import torch.nn.functional as F
from torch import nn
from torch.nn.parameter import is_lazy

from normless._internal.arguments import arguments_of, require_network
from normless._internal.copying import require_whole
from normless._internal.exclusive import exclusive
from normless._internal.state import in_mode
from normless.doctor.facts.batches import read_batches
from normless.doctor.findings import Check, Finding
from normless.doctor.trained import blocks, signal, weights
from normless.doctor.trained.graded import LESS
from normless.doctor.trained.limits import QUANTITIES
from normless.doctor.trained.report import Health
from normless.doctor.trained.subject import Subject
from normless.errors import InputsError, NormlessError
from normless.probes import Loss
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map

_CHECKS = (
    *(weights.check_values, signal.check_outputs, signal.check_fit, weights.check_gamma, signal.check_units),
    *(weights.check_divisors, signal.check_attention, signal.check_outliers, weights.check_equal),
)
_REMOVALS = (blocks.check_parts, blocks.check_cost)


@exclusive
def diagnose_trained(
    model: nn.Module,
    batches: Any,
    *,
    loss: Loss = F.cross_entropy,
    residual_map: ResidualMap | None = None,
    most: int = 16,
    remove: bool = True,
) -> Health:
    """Find what is wrong with a trained network, by layer, on calibration batches in evaluation mode.

    Looked for are weights and results that are not finite; running statistics that are fresh, or do not fit the data,
    also because of other preprocessing; channels with γ at zero; units that never vary; activations and attentions
    that are saturated; norms whose variance is comparable with ε; equal units; and residual branches and layers that
    do nothing. Massive activations (Sun et al. 2024), outlier features (Dettmers et al. 2022) and small shares of the
    other faults are advice. The table by layer has all numbers, also the cost of a constant in place of each divisor
    of layer, RMS and group norms. `normless.doctor.trained.limits` states the limits,
    docs/trained.md where they come from.

    It makes one forward pass on each batch, a second one if the network has batch norms, and on the first batch one
    for each residual block, weight layer, and layer, RMS or group norm. The network, its buffers, its modes and all
    random states are restored.

    Args:
        batches: calibration batches (inputs, targets), or inputs alone, as a list or a DataLoader: data of the kind
            that the network was trained on, preprocessed in the same way. A tensor, a tuple or a dictionary is a
            single batch.
        loss: as in `diagnose`; a loss that does not take the outputs is not measured.
        residual_map: the network's map; computed if None. Without one, nothing is left out.
        most: the largest number of batches that are read.
        remove: whether branches, layers and divisors are left out one at a time.

    Raises:
        InputsError: there is no batch, or the network does not run on it.
    """
    require_network(model)
    require_whole(model)
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise InputsError(f"Expected a trained network, got lazy parameters ({lazy[0]}), which have no values.")
    if most < 1:
        raise ValueError(f"Expected to read 1 batch or more, got most={most}.")
    subject = Subject(model, read_batches(model, batches, most), loss, residual_map)
    if residual_map is None:
        positional, named = arguments_of(subject.batches[0][0])
        try:
            with in_mode(model, False):
                subject.map = find_residual_map(model, *positional, **named)
        except NormlessError as error:
            subject.unmapped = str(error)
    checks: list[Check] = []
    for each in (*_CHECKS, *(_REMOVALS if remove else ())):
        checks.append(each(subject))
        if checks[-1].blocks:
            why = f"repair the {checks[-1].name} first: nothing else can be judged before"
            checks.append(Check("everything else", why, asked=False))
            break
    checks = _ranked(checks, subject)
    missed = tuple(subject.measured.sums.missed) if "measured" in vars(subject) else ()
    return Health(tuple(checks), missed, table=_table(subject), passes=subject.passes)


# Findings from which others follow at later layers, and findings that may follow.
_CAUSES = {"zero_gamma", "dead_units", "saturated_units", "saturated_attention", "divides_by_epsilon"}
_OUTLIERS = {"massive_activations", "outlier_features"}
_CONSEQUENCES = {"unfitting_statistics", "dead_units", "saturated_units", "saturated_attention", "idle_layer"}


def _ranked(checks: list[Check], subject: Subject) -> list[Check]:
    """Make findings less severe that follow from another one at an earlier layer.

    Outliers from which another finding follows are a finding themselves.
    """
    every = [found for check in checks for found in check.findings]

    def causes(found: Finding) -> list[Finding]:
        first = min(map(subject.at, found.where), default=0)
        return [
            one
            for one in every
            if one.kind != found.kind and found.kind in _CONSEQUENCES and not found.advice
            if one.kind in _OUTLIERS or (one.kind in _CAUSES and not one.advice)
            if min(map(subject.at, one.where)) < first
        ]

    leading = [id(cause) for found in every for cause in causes(found) if cause.kind in _OUTLIERS]

    def judged(found: Finding) -> Finding:
        less = LESS if causes(found) else 0.0
        return replace(found, severity=found.severity - less, advice=found.advice and id(found) not in leading)

    return [replace(check, findings=tuple(map(judged, check.findings))) for check in checks]


def _table(subject: Subject) -> pd.DataFrame:
    """Return the rows in execution order: layers of the map, blocks after their layers, others as they were seen."""
    order: list[str] = []
    if subject.map is not None:
        ends = {block.layers[-1].path: block.name for block in subject.map.walk() if block.layers}
        for layer in subject.map.layers():
            order += [layer.path, *([ends[layer.path]] if layer.path in ends else [])]
        order += [block.name for block in subject.map.walk()]
    names = [name for name in dict.fromkeys(order) if name in subject.rows]
    for name in (name for name in subject.rows if name not in names):
        inside = [at for at, other in enumerate(names) if other.startswith(f"{name}.")]
        names.insert(inside[-1] + 1 if inside else len(names), name)
    rows = [{"layer": name, **subject.rows[name]} for name in names]
    table = pd.DataFrame(rows, columns=["layer", "kind", *QUANTITIES])
    return table.astype(dict.fromkeys(QUANTITIES, float))
