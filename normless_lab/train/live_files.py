"""Files about an unfinished epoch: its losses so far, and the findings of a watch."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from normless.saving import replaced
from normless_lab.train.directory import RunDirectory
from normless_lab.train.run_listener import RunListener, RunStart

if TYPE_CHECKING:
    from normless.doctor import Watch

SECONDS = 1.0


class LiveFiles(RunListener):
    """Writes `unfinished.csv`, a line `epochs,loss` per step of the unfinished epoch, and `findings.json`.

    The losses are written once a second, and removed when the epoch is among the curves. Findings stay, each with its
    `step`, the same in `epochs`. No run depends on these files, or fails for lack of them.
    """

    def __init__(self, directory: RunDirectory, watch: Watch | None) -> None:
        self._directory, self._watch = directory, watch
        self._steps_per_epoch, self._lines = 1, list[str]()
        self._findings: list[dict[str, Any]] = []
        self._written, self._told = time.monotonic(), 0

    def on_start(self, start: RunStart) -> None:
        """Remove the losses that an interrupted process left; those findings stay."""
        self._steps_per_epoch = start.steps_per_epoch
        self._clear()
        with suppress(OSError, ValueError):
            self._findings = list(json.loads(self._directory.findings.read_text(encoding="utf-8")))

    def on_step(self, step: int, loss: float) -> None:
        """Write the losses since the last call, and new findings."""
        self._lines.append(f"{step / self._steps_per_epoch:.6g},{loss:.6g}\n")
        if time.monotonic() - self._written >= SECONDS:
            with suppress(OSError), self._directory.unfinished.open("a", encoding="utf-8") as file:
                file.writelines(self._lines)
            self._lines.clear()
            self._written = time.monotonic()
        self._tell()

    def on_epoch(self, _: Any) -> None:
        """The losses are among the curves now."""
        self._clear()
        self._tell()

    def on_end(self, _: Any) -> None:
        """The same of a run that diverged."""
        self._clear()
        self._tell()

    def _clear(self) -> None:
        self._lines.clear()
        with suppress(OSError):
            self._directory.unfinished.unlink(missing_ok=True)

    def _tell(self) -> None:
        """Write all findings if some are new."""
        findings = () if self._watch is None else self._watch.findings
        if len(findings) > self._told:
            known = {(finding["kind"], *finding["where"]) for finding in self._findings}
            for finding in findings[self._told :]:
                if (finding.kind, *finding.where) not in known:
                    step = float(finding.evidence["step"])
                    self._findings.append(finding.to_dict() | {"step": step, "epochs": step / self._steps_per_epoch})
            self._told = len(findings)
            with suppress(OSError), replaced(self._directory.findings) as part:
                part.write_text(json.dumps(self._findings, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
