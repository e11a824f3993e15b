"""How a laboratory tells others what it does; it prints nothing itself."""

from __future__ import annotations

from collections.abc import Sequence

from normless.sweeps.row import RunRow


class LaboratoryListener:
    """Is told of the runs of a laboratory in the process that asked for them; override what is of interest."""

    def on_begin(self, missing: int, finished: int) -> None:
        """A set of runs begins: how many are to be carried out, and how many more of it were finished before."""

    def on_runs(self, rows: Sequence[RunRow]) -> None:
        """Some more runs are finished and kept."""

    def on_resubmit(self, config_hash: str, error: str) -> None:
        """The process of a run died, and the run goes on in another."""

    def on_end(self) -> None:
        """Every run of the set that is carried out here is finished."""
