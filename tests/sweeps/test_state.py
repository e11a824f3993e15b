"""The table of finished runs, in both databases: rows come back as they went in, once, whatever happens meanwhile."""

from __future__ import annotations

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from postgres_helpers import ThrowawayPostgres

from normless.sweeps import RunRow
from normless.sweeps.store import BATCH, RunState, StateError, sqlite_url


def row(name: str, **changes: Any) -> RunRow:
    usual: dict[str, Any] = {
        "hash": name,
        "kind": "train",
        "config": {"scheme": "α", "rate": 0.1, "clip": None},
        "outcome": "trained",
        "error": None,
        "result": {"test_loss": "nan", "test_accuracy": 0.1 + 0.2, "epochs": [{"epoch": 1}]},
        "seconds": 1.5,
        "finished_at": "2026-01-02T03:04:05+00:00",
        "machine": "here",
        "versions": {"python": "3.11"},
    }
    return RunRow(**{**usual, **changes})


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "new" / "runs.sqlite")
    found: str = request.getfixturevalue("postgres_url")
    return found


def test_rows_come_back_as_they_went_in(url: str) -> None:
    rows = [row("a"), row("b", outcome="failed", error="No: 'it' \"failed\".\n", result=None), row("c")]
    with RunState(url) as state:
        state.add(rows)
        assert state.read(["a", "b", "nothing"]) == {"a": rows[0], "b": rows[1]}
        assert state.finished(["b", "c", "nothing"]) == {"b", "c"}
    with RunState(url) as state:
        assert state.hashes() == {"a", "b", "c"}
        state.remove(["b", "nothing"])
        assert state.hashes() == {"a", "c"}
        assert state.read(["a", "c"]) == {"a": rows[0], "c": rows[2]}


def test_a_row_that_is_there_stays_as_it_is(url: str) -> None:
    with RunState(url) as state:
        state.add([row("a")])
        state.add([row("b"), row("a", outcome="failed", seconds=9.0)])
        assert state.read(["a", "b"]) == {"a": row("a"), "b": row("b")}
        state.add([])


def test_many_rows_are_read_and_removed_in_batches(url: str) -> None:
    names = [f"{number:05}" for number in range(2 * BATCH + 7)]
    with RunState(url) as state:
        state.add([row(name) for name in names])
        assert set(state.read(names)) == state.finished([*names, *names]) == set(names)
        state.remove(names[1:])
        assert state.hashes() == {names[0]}


def test_several_writers_lose_and_double_nothing(url: str) -> None:
    start = threading.Barrier(4)

    def write(writer: int) -> None:
        start.wait()
        with RunState(url) as state:
            for number in range(25):
                state.add([row(f"shared-{number}", machine=str(writer)), row(f"own-{writer}-{number}")])

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write, writer) for writer in range(4)]:
            done.result()
    with RunState(url) as state:
        assert len(state.hashes()) == 25 + 4 * 25


def test_a_new_file_that_another_process_writes_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE other (number)")
        other.execute("BEGIN IMMEDIATE")
        released = threading.Timer(0.2, other.execute, ["COMMIT"])
        released.start()
        with RunState(sqlite_url(file)) as state:
            state.add([row("written")])
            assert state.hashes() == {"written"}
        released.join()


def test_a_server_that_is_restarted_is_waited_for(postgres_server: ThrowawayPostgres, postgres_url: str) -> None:
    with RunState(postgres_url) as state:
        state.add([row("before")])
        postgres_server.stop()
        back = threading.Timer(1.0, postgres_server.start)
        back.start()
        state.add([row("while it is away")])
        back.join()
        assert state.hashes() == {"before", "while it is away"}
        postgres_server.stop("immediate")
        postgres_server.start()
        assert state.hashes() == {"before", "while it is away"}


def test_a_server_that_stays_away_is_an_error(postgres_server: ThrowawayPostgres, postgres_url: str) -> None:
    with RunState(postgres_url, patience=0.5) as state:
        postgres_server.stop()
        try:
            with pytest.raises(StateError, match=r"The runs' database postgresql://.* failed"):
                state.hashes()
        finally:
            postgres_server.start()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nothing", "Expected a database as sqlite:///FILE or postgresql://"),
        ("mysql://host/base", "mysql is neither SQLite nor PostgreSQL"),
        ("mysql://me:secret@host/base", r"got 'mysql://me:\*\*\*@host/base'"),
        ("oracle+nothing://host/base", "oracle is neither SQLite nor PostgreSQL"),
        ("sqlite:////nowhere/at/all/runs.sqlite", "cannot be opened: unable to open database file"),
        ("postgresql://someone:secret@127.0.0.1:1/base", "postgresql://someone:\\*\\*\\*@127.0.0.1:1/base cannot be"),
    ],
)
def test_a_database_that_is_none_is_refused_at_once(url: str, said: str) -> None:
    with pytest.raises(StateError, match=said) as caught:
        RunState(url)
    assert "secret" not in str(caught.value)


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    file.write_bytes(os.urandom(4096))
    with pytest.raises(StateError, match="file is not a database"):
        RunState(sqlite_url(file))
