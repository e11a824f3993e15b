"""A clone of the repository in which mutants are written and commits are reverted, one after another."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from mutants import PACKAGES, Mutant

SOURCES = [f"{package}/*.py" for package in PACKAGES]


@dataclass(frozen=True)
class Revert:
    """A commit whose changes of the packages are taken back."""

    commit: str
    title: str

    @property
    def name(self) -> str:
        return f"revert:{self.commit}"


class Tree:
    """The clone at a commit of the repository.

    A changed file gets a time of its own, since Python takes compiled code for a file of the same size and second.
    """

    def __init__(self, folder: Path, root: Path, commit: str) -> None:
        self.folder = folder
        if not folder.exists():
            subprocess.run(["git", "clone", "--quiet", "--shared", root, folder], check=True)
        self.git("checkout", "--quiet", "--force", "--detach", commit)
        self.time = int(time.time())
        self.changed: list[str] = []

    def git(self, *arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def source(self, file: str) -> bytes:
        return (self.folder / file).read_bytes()

    def apply(self, change: Mutant | Revert) -> dict[str, list[int]]:
        """Change the files; return the lines of each that are changed, by their numbers before."""
        return self._mutate(change) if isinstance(change, Mutant) else self._revert(change)

    def _mutate(self, mutant: Mutant) -> dict[str, list[int]]:
        self.changed = [mutant.file]
        (self.folder / mutant.file).write_bytes(mutant.of(self.source(mutant.file)))
        self._touch()
        return {mutant.file: [mutant.start[0]]}

    def _revert(self, revert: Revert) -> dict[str, list[int]]:
        """Return no lines where the commit conflicts with later ones."""
        reverted = subprocess.run(
            ["git", "revert", "--no-commit", revert.commit], cwd=self.folder, capture_output=True
        )
        conflicts = self.git("diff", "--name-only", "--diff-filter=U", "--", *SOURCES) if reverted.returncode else ""
        patch = self.git("diff", "--unified=0", "--no-renames", "HEAD", "--", *SOURCES)
        self.git("reset", "--quiet", "--hard")
        if conflicts or not patch:
            return {}
        subprocess.run(["git", "apply", "--unidiff-zero"], cwd=self.folder, check=True, input=patch.encode())
        lines: dict[str, list[int]] = defaultdict(list)
        for line in patch.splitlines():
            if line.startswith("--- "):
                file = line.removeprefix("--- ").removeprefix("a/")
            elif found := re.match(r"@@ -(\d+)(?:,(\d+))? ", line):
                first, count = int(found[1]), int(found[2] or 1)
                lines[file] += [first, first + 1] if count == 0 else range(first, first + count)
        self.changed = [file for file in lines if file != "/dev/null"]
        self._touch()
        return {file: lines[file] for file in self.changed}

    def restore(self) -> None:
        """Take every change back."""
        self.git("reset", "--quiet", "--hard")
        self.git("clean", "--quiet", "--force", "-d")
        self._touch()
        self.changed = []

    def original(self, file: str) -> bytes:
        return subprocess.run(
            ["git", "show", f"HEAD:{file}"], cwd=self.folder, check=True, capture_output=True
        ).stdout

    def _touch(self) -> None:
        self.time = max(self.time + 1, int(time.time()))
        for file in self.changed:
            if (path := self.folder / file).exists():
                os.utime(path, (self.time, self.time))
