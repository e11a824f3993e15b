"""The norm of each γ, by the role of its normalization."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd
from torch import Tensor

from normless.probes.hooks._watcher import PROBES, Setting, Watcher


@PROBES.register("gammas")
@dataclass
class GammaNorms(Watcher):
    """Euclidean norm of every norm's γ before the pass: `order` (from 1), `layer`, `role`, `channels`, `gamma_norm`.

    Roles are those of `ResidualMap.norms`: `stem`, `down`, `last` and `other`, the γ_0, γ_down, γ_last and γ_others
    of Kim et al. (section 2). A γ that several norms share has a row for each of them; a norm without γ has none.
    """

    _rows: list[tuple[str, str, int, Tensor]] = field(default_factory=list, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Measure every γ."""
        named = dict(setting.model.named_parameters(remove_duplicate=False))
        gammas = {path: setting.map.by_path[path].gamma for path in setting.map.norms}
        self._rows = [
            (path, setting.map.norms[path], named[gamma].numel(), named[gamma].detach().double().norm())
            for path, gamma in gammas.items()
            if gamma in named
        ]

    def table(self) -> pd.DataFrame:
        """Return a row per norm in execution order."""
        rows = [(order, *known, float(norm)) for order, (*known, norm) in enumerate(self._rows, 1)]
        return pd.DataFrame(rows, columns=["order", "layer", "role", "channels", "gamma_norm"])
