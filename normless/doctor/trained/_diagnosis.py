"""`nl.diagnose_trained`: is the network of a checkpoint healthy?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pandas as pd
import torch.nn.functional as F
from torch import nn
from torch.nn.parameter import is_lazy

from normless._internal.arguments import arguments_of, require_network
from normless._internal.calling import Call, with_call
from normless._internal.copying import require_whole
from normless.doctor._findings import Check, Finding, in_order
from normless.doctor._report import Diagnosis
from normless.doctor.facts._batches import read_batches
from normless.doctor.trained import _against as reference, _checks as checks, _removal as removal, _weights as weights
from normless.doctor.trained._limits import QUANTITIES
from normless.doctor.trained._subject import TrainedSubject
from normless.errors import InputsError, NormlessError
from normless.exclusive import exclusive
from normless.probes import Loss
from normless.residual import ResidualMap, residual_map as find_residual_map
from normless.spec import jsonable
from normless.state import in_mode, untouched

# More rows than this are shortened in texts.
_MOST_ROWS = 60


@dataclass(frozen=True)
class Health(Diagnosis):
    """The checks of a trained network, their findings, and a table of what was measured of each layer.

    Attributes:
        table: a row for each layer and residual block in execution order, with the columns `layer`, `kind`, and the
            names of `normless.doctor.trained._limits.QUANTITIES`; NaN where a quantity does not apply.
        passes: the number of forward passes that were made.
        order: the positions in execution of the places of findings.
    """

    nothing: ClassVar[str] = "Nothing was found that is wrong with the network"
    aside: ClassVar[str] = "advice (the network computes well all the same):"
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    passes: int = 0
    order: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings and the rows of the table, without missing values, as data for JSON."""
        rows = self.table.to_dict(orient="records")
        known = [{str(name): value for name, value in row.items() if pd.notna(value)} for row in rows]
        return super().to_dict() | {"layers": jsonable(known), "passes": self.passes}

    def _ranked(self) -> list[Finding]:
        return in_order((found for check in self.checks for found in check.findings), self.order)

    def _short(self) -> tuple[str, list[tuple[str, str]]]:
        head, rows = super()._short()
        stands = [("loss", check.summary) for check in self.checks if check.name == "loss" and not check.findings]
        return head, [*rows[:-1], *stands, rows[-1]]

    @property
    def _unseen(self) -> str:
        return "other data, how it was trained"

    def full(self, *, why: bool = True) -> str:
        """Return the findings and checks as `Diagnosis.full` does, and the table by layer."""
        shown, zero = self._shown()
        text = shown.to_string(index=False, na_rep="–", float_format="{:.3g}".format, max_rows=_MOST_ROWS)
        parts = [super().full(why=why), "", text] if len(shown) else [super().full(why=why)]
        return "\n".join([*parts, *([f"0 in all layers: {', '.join(zero)}"] if zero else [])])

    def _shown(self) -> tuple[pd.DataFrame, list[str]]:
        """Return the table without quantities that are zero in all layers, and the names of these."""
        measured = [name for name in QUANTITIES if name in self.table and self.table[name].notna().any()]
        zero = [name for name in measured if not self.table[name].fillna(0).any()]
        return self.table[["layer", "kind", *(name for name in measured if name not in zero)]], zero


_CHECKS = (
    *(checks.check_values, checks.check_outputs, checks.check_loss, checks.check_fit, checks.check_gamma),
    *(checks.check_units, weights.check_parameters, checks.check_independence),
    *(checks.check_flat, checks.check_divisors, checks.check_attention, checks.check_outliers, checks.check_equal),
)
_REMOVALS = (removal.check_parts, removal.check_cost)
_LAST = (reference.check_reference,)


@exclusive
@with_call
def diagnose_trained(
    model: nn.Module,
    batches: Any,
    *,
    loss: Loss = F.cross_entropy,
    call: Call | None = None,
    residual_map: ResidualMap | None = None,
    most_batches: int = 16,
    remove: bool = True,
    against: nn.Module | None = None,
) -> Health:
    """Find what is wrong with a trained network, by layer, on calibration batches in evaluation mode.

    `diagnose` says why a network does not train; this says whether what training left computes as it should.

    Looked for are weights and results that are not finite; a loss no better than that of constant outputs; running
    statistics that are fresh, or do not fit the data, also because of other preprocessing; channels with γ at zero;
    units that never vary; activations and attentions that are saturated; norms whose variance is comparable with ε;
    equal units; and residual branches and layers that do nothing. Massive activations (Sun et al. 2024), outlier
    features (Dettmers et al. 2022) and small shares of the other faults are advice. The table by layer has all
    numbers, also the cost of a constant in place of each divisor of layer, RMS and group norms.
    `normless.doctor.trained._limits` states the limits, docs/trained.md where they come from.

    It makes one forward pass on each batch, a second one if the network has batch norms, and on the first batch one
    for each residual block, weight layer, and layer, RMS or group norm, on a few examples of it if these passes take
    much work. The network, its buffers, its modes and all random states are restored.

    Args:
        batches: calibration batches (inputs, targets), or inputs alone, as a list or a DataLoader: data of the kind
            that the network was trained on, preprocessed in the same way. A tensor, a tuple or a dictionary is a
            single batch.
        loss: as in `diagnose`; a loss that does not take the outputs is not measured.
        call: as in `residual_map`.
        residual_map: the network's map; computed if None. Without one, nothing is left out.
        most_batches: the largest number of batches that are read.
        remove: whether branches, layers and divisors are left out one at a time.
        against: a network that is right, such as one before a conversion or of an earlier version: each layer is
            compared with its own of the same name, on the first batch.

    Raises:
        InputsError: there is no batch, or the network does not run on it.
    """
    require_network(model)
    require_whole(model)
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise InputsError(f"Expected a trained network, got lazy parameters ({lazy[0]}), which have no values.")
    if most_batches < 1:
        raise ValueError(f"Expected to read 1 batch or more, got most_batches={most_batches}.")
    given = read_batches(model, batches, most_batches)
    subject = TrainedSubject(model, given, loss, residual_map, against=against, call=call)
    with untouched(model, subject.batches, values=False):
        return _examined(subject, remove=remove)


def _examined(subject: TrainedSubject, *, remove: bool) -> Health:
    """Make the checks until one blocks the others."""
    if subject.map is None:
        _find_map(subject)
    made: list[Check] = []
    for each in (*_CHECKS, *(_REMOVALS if remove else ()), *_LAST):
        made.append(each(subject))
        if made[-1].blocks:
            why = f"repair the {made[-1].name} first: nothing else can be judged before"
            made.append(Check("everything else", why, asked=False))
            break
    missed = tuple(subject.measured.sums.missed) if "measured" in vars(subject) else ()
    places = {place for each in made for found in each.findings for place in found.where}
    order = {place: subject.at(place) for place in places}
    return Health(tuple(made), missed, table=_table(subject), passes=subject.passes, order=order)


def _find_map(subject: TrainedSubject) -> None:
    """Set the map of the network, or the reason why it has none."""
    positional, named = arguments_of(subject.batches[0][0])
    try:
        with in_mode(subject.model, False):
            subject.map = find_residual_map(subject.model, *positional, **named)
    except NormlessError as error:
        subject.unmapped = str(error)


def _table(subject: TrainedSubject) -> pd.DataFrame:
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
