"""The table of finished runs, in both databases: rows come back as they went in, once, whatever happens meanwhile."""

from __future__ import annotations

import os
import sqlite3
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from postgres_helpers import ThrowawayPostgres

from normless_lab.sweeps import RunRow
from normless_lab.sweeps.store import BATCH, RunState, StateError, sqlite_url


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
        (tmp_path / "new").mkdir()
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
        ("nothing", r"Expected a database as sqlite:///FILE or postgresql://.*, got \*\*\*: it is no URL"),
        ("", "got '': it is no URL"),
        ("mysql://host/base", "got mysql://host/base: mysql is neither SQLite nor PostgreSQL"),
        ("mysql://me:SECRET@host/base", r"got mysql://me:\*\*\*@host/base"),
        ("postgresq://me:SECRET@host/base", r"postgresq is neither"),
        ("oracle+nothing://host/base", "oracle is neither SQLite nor PostgreSQL"),
        ("sqlite:////nowhere/at/all/runs.sqlite", "cannot be opened: unable to open database file"),
        ("postgresql://someone:SECRET@127.0.0.1:1/base", r"postgresql://someone:\*\*\*@127.0.0.1:1/base cannot be"),
        ("postgresql://127.0.0.1:1/base?password=SECRET", r"postgresql://127.0.0.1:1/base cannot be"),
        ("postgresql://127.0.0.1:1/base?user=me&password=a@SECRET", r"postgresql://\*\*\*: in a password, @ / "),
        ("postgresql://127.0.0.1:1/base?nonsense=SECRET", r"postgresql://127.0.0.1:1/base cannot be"),
        ("host=h password=SECRET dbname=d", r"got \*\*\*: it is no URL"),
        ("postgresql:/me:SECRET@host/base", r"got \*\*\*: it is no URL"),
        ("postgresql://me:a@SECRET@host/base", r"got postgresql://\*\*\*: in a password, @ / "),
        ("postgresql://me:1/SECRET@127.0.0.1:1/base", r"postgresql://\*\*\*: in a password, @ / "),
        ("postgresql://me:1?SECRET@127.0.0.1:1/base", r"postgresql://\*\*\*: in a password, @ / "),
        ("postgresql://host:SECRET/base", "it is no URL"),
        ("sqlite://", "a database in memory, and the runs in it, would be gone with this process"),
        ("sqlite://:memory:", "Expected a database"),
        ("sqlite:///:memory:", "a database in memory"),
        ("sqlite:///file:runs?mode=memory&uri=true", "a database in memory"),
    ],
)
def test_a_database_that_is_none_is_refused_and_no_secret_is_told(
    url: str, said: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    with pytest.raises(StateError, match=said) as caught:
        RunState(url, opening=0.1, on_wait=told.append).create()
    traceback_of_all = "".join(traceback.format_exception(caught.value))
    printed = capfd.readouterr()
    for text in (str(caught.value), traceback_of_all, caplog.text, printed.out, printed.err, *told):
        assert "SECRET" not in text


def _execute(url: str, statement: str) -> None:
    """A statement from outside."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.mark.parametrize(
    "change",
    [
        "outcome = 'diverged'",
        "seconds = seconds + 1e-9",
        "error = 'none'",
        "machine = 'hers'",
        """config = '{"scheme": "α", "rate": 0.2, "clip": null}'""",
        """result = '{"test_loss": "nan", "test_accuracy": 0.3, "epochs": [{"epoch": 1}]}'""",
        "result = NULL",
        "versions = '[]'",
    ],
)
def test_a_damaged_row_is_a_failed_run(url: str, change: str) -> None:
    with RunState(url) as state:
        state.add([row("a"), row("b")])
    _execute(url, f"UPDATE runs SET {change} WHERE hash = 'a'")
    with RunState(url) as state:
        rows = state.read(["a", "b"])
    assert rows["b"] == row("b")
    assert (rows["a"].outcome, rows["a"].result) == ("failed", None)
    assert "damaged after it was written" in str(rows["a"].error)


@pytest.mark.parametrize("text", ["{", "X'80'", "'caf' || X'80'"])
def test_a_row_that_cannot_be_decoded_is_a_failed_run(tmp_path: Path, text: str) -> None:
    url = sqlite_url(tmp_path / "runs.sqlite")
    with RunState(url) as state:
        state.add([row("a")])
    value = text if "X" in text else f"'{text}'"
    _execute(url, f"UPDATE runs SET result = CAST({value} AS TEXT), machine = CAST({value} AS TEXT)")
    with RunState(url) as state:
        assert state.read(["a"])["a"].outcome == "failed"


def test_a_damaged_page_of_the_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    with RunState(sqlite_url(file)) as state:
        state.add([row("name-of-a-run")])
    data = bytearray(file.read_bytes())
    # The first is in the index of the table.
    at = data.index(b"name-of-a-run")
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(StateError, match=r"runs\.sqlite is damaged \(.+\)\. Put a copy back, or move it away"):
        RunState(sqlite_url(file))


def test_a_table_without_digests_is_read_and_gets_them(url: str) -> None:
    with RunState(url) as state:
        state.add([row("a")])
    _execute(url, "ALTER TABLE runs DROP COLUMN digest")
    with RunState(url) as state, RunState(url) as other:
        state.add([row("b")])
        assert other.read(["a", "b"]) == {"a": row("a"), "b": row("b")}


def test_reading_creates_nothing(url: str, tmp_path: Path) -> None:
    with RunState(url) as state, RunState(url) as other:
        assert state.hashes() == state.finished(["a"]) == set()
        assert state.read(["a"]) == {}
        state.remove(["a"])
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        # The table of another process is seen once it is there.
        other.add([row("a")])
        assert state.hashes() == {"a"}


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_deleted_while_it_is_open_takes_no_rows(tmp_path: Path, replaced: bool) -> None:
    file = tmp_path / "runs.sqlite"
    with RunState(sqlite_url(file)) as state:
        state.add([row("a")])
        for part in tmp_path.iterdir():
            part.unlink()
        if replaced:
            with RunState(sqlite_url(file)) as other:
                other.add([row("b")])
        for use in (lambda: state.add([row("c")]), state.hashes, lambda: state.remove(["a"])):
            with pytest.raises(
                StateError, match="was deleted or replaced while it was in use; put it back, or start"
            ):
                use()
    assert file.exists() == replaced


def test_a_server_that_is_down_at_first_is_waited_for_with_a_sentence(
    postgres_server: ThrowawayPostgres, postgres_url: str
) -> None:
    told: list[str] = []
    postgres_server.stop()
    back = threading.Timer(1.0, postgres_server.start)
    back.start()
    try:
        with RunState(postgres_url, on_wait=told.append) as state:
            state.add([row("a")])
            assert state.hashes() == {"a"}
    finally:
        back.join()
    (sentence,) = told
    assert "cannot be opened: " in sentence
    assert "refused" in sentence
    assert sentence.endswith("waiting up to 60 s for it.")


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    file.write_bytes(os.urandom(4096))
    with pytest.raises(StateError, match="file is not a database"):
        RunState(sqlite_url(file))
