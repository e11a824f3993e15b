"""How much of a paper's setup an artefact is carried out with."""

from __future__ import annotations

from typing import Literal, get_args

Budget = Literal["smoke", "small", "paper"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)
