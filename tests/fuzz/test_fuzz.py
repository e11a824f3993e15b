"""Wrong command lines, files and texts: none ends in a traceback, none that is refused leaves a file.

`make fuzz` tries 10,000 examples, `make test` a few. A traceback of the user's own file is what a user should see.
"""

from __future__ import annotations

import contextlib
import io
import resource
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz_cases import CASES, READS
from fuzz_world import damage, write_world
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

import normless
import normless_papers
from normless.cli import main
from normless_lab.sweeps import Laboratory
from normless_lab.train import _training_run as training_run

# Seconds for an example, and bytes that it may allocate.
SECONDS, MEMORY = 60, 3 << 30
OWN = tuple(str(Path(one.__file__ or "").parent) for one in (normless, normless_papers))
DATA = st.data()


class Enough(BaseException):
    """A training or a sweep began: what it was given was accepted."""


class TooLong(BaseException):
    """The time of an example is over."""


def tried(percent: float) -> Any:
    """How many examples a test tries: its share of those of the profile, and two at least."""
    count = max(2, round(settings.default.max_examples * percent / 100))  # type: ignore[union-attr]
    return settings(max_examples=count, suppress_health_check=[*HealthCheck], phases=[Phase.generate, Phase.shrink])


def raising(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> None:
        raise error

    return call


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of valid files, in a process without network and with an end of what would take long."""
    folder, epoch = tmp_path_factory.mktemp("fuzz") / "world", training_run.train_epoch
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setenv("NORMLESS_DATA", str(folder.parent / "data"))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        for name in ("socket.connect", "getaddrinfo"):
            patch.setattr(f"socket.{name}", raising(OSError(101, "Network is unreachable")))
        write_world(folder)
        enough = raising(Enough)
        patch.setattr(
            *(training_run, "train_epoch"),
            lambda training, at, *rest, **how: enough() if at else epoch(training, at, *rest, **how),
        )
        for name in ("run", "submit"):
            patch.setattr(Laboratory, name, enough)
        for name in ("normless_lab.bench._command.measured", "normless_papers.results.reproduce.reproduce"):
            patch.setattr(name, enough)
        before = signal.signal(signal.SIGALRM, raising(TooLong))
        yield folder
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Limit time and memory."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, hard))
    signal.alarm(SECONDS)
    try:
        yield
    except TooLong:
        pytest.fail(f"It took more than {SECONDS} s.")
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


def carry_out(world: Path, words: list[str], *damages: tuple[str, str, float, str]) -> str:
    """Run a command in a copy of the world; one that is refused leaves nothing."""
    scratch = world.with_name("case")
    shutil.copytree(world, scratch)
    try:
        for name, *how in damages:
            damage(scratch / name, *how)  # type: ignore[arg-type]
        before = listing(scratch)
        quiet = contextlib.redirect_stdout(io.StringIO())
        with contextlib.chdir(scratch), limits(), quiet, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verdict = command(words)
        left = sorted(listing(scratch) - before)
        # A run that began, in whose data a damaged file was met later, is there to be resumed.
        if verdict.startswith("refused") and not any(name.endswith("config.yaml") for name in left):
            assert left == [], verdict
        return verdict
    finally:
        shutil.rmtree(scratch)


def command(words: list[str]) -> str:
    """The verdict of a command line."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            code = main([*words])
    except Enough:
        return "accepted"
    said = errors.getvalue()
    last = said.strip().rpartition("\n")[2]
    if "Traceback" in said:
        assert "mine.py" in said, said
        assert not any(f'File "{home}' in said for home in OWN), said
        assert code == 1
        return "the user's own"
    assert "--debug" not in last, f"not expected: {said}"
    assert code in (0, 1, 2)
    assert code != 2 or not words or said.count("\n") <= 1 or "normless: " in last, f"more than a sentence: {said}"
    return f"refused: {last}" if code == 2 else "accepted"


@pytest.mark.parametrize("name", READS)
def test_files_that_are_not_damaged_are_read(name: str, world: Path) -> None:
    assert carry_out(world, READS[name].split()) == "accepted"


@pytest.mark.parametrize("name", CASES)
@tried(2.5)
@given(data=DATA)
def test_commands(name: str, data: st.DataObject, world: Path) -> None:
    words, damages = data.draw(CASES[name])
    carry_out(world, words, *damages)
