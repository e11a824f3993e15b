"""The table of finished runs, in both databases: rows come back as they went in, once, whatever happens meanwhile."""

from __future__ import annotations

import sqlite3
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from postgres_helpers import ThrowawayPostgres

from normless_lab.sweeps import RunRow
from normless_lab.sweeps._store import RUNS, RunState, StateError, sqlite_url


def row(name: str, **changes: Any) -> RunRow:
    usual: dict[str, Any] = {"hash": name, "kind": "train", "outcome": "trained", "error": None, "seconds": 1.5}
    usual |= {"config": {"scheme": "α", "rate": 0.1, "clip": None}, "machine": "here", "versions": {"python": "3.11"}}
    usual["result"] = {"test_loss": "nan", "test_accuracy": 0.1 + 0.2, "epochs": [{"epoch": 1}]}
    return RunRow(**usual | {"finished_at": "2026-01-02T03:04:05+00:00"} | changes)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | sa.URL:
    if request.param == "sqlite":
        (tmp_path / "new").mkdir()
        return sqlite_url(tmp_path / "new" / "runs.sqlite")
    found: str = request.getfixturevalue("postgres_url")
    return found


def test_rows_come_back_as_they_went_in(url: str | sa.URL) -> None:
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


def test_several_writers_lose_and_double_nothing(url: str | sa.URL) -> None:
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nothing", r"Expected a database as sqlite:///FILE or postgresql://.*, got \*\*\*: it is not a URL"),
        ("mysql://me:SECRET@host/base", r"got mysql://me:\*\*\*@host/base"),
        ("sqlite:////nowhere/at/all/runs.sqlite", "cannot be opened: unable to open database file"),
        ("postgresql://someone:SECRET@127.0.0.1:1/base", r"postgresql://someone:\*\*\*@127.0.0.1:1/base cannot be"),
        ("postgresql://127.0.0.1:1/base?user=me&password=a@SECRET", r"postgresql://\*\*\*: in a password, @ / "),
        ("host=h password=SECRET dbname=d", r"got \*\*\*: it is not a URL"),
        ("sqlite://", "a database in memory, and the runs in it, would be gone with this process"),
    ],
)
def test_a_database_that_is_none_is_refused_and_no_secret_is_told(
    url: str | sa.URL, said: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    with pytest.raises(StateError, match=said) as caught:
        RunState(url, opening=0.1, on_wait=told.append).create()
    texts = [*traceback.format_exception(caught.value), caplog.text, *capfd.readouterr(), *told]
    assert not any("SECRET" in text for text in texts)


@pytest.mark.parametrize(
    "change",
    [
        "outcome = 'diverged'",
        """config = '{"scheme": "α", "rate": 0.2, "clip": null}'""",
        "result = NULL",
    ],
)
def test_a_damaged_row_is_a_failed_run(url: str | sa.URL, change: str) -> None:
    with RunState(url) as state:
        state.add([row("a"), row("b")])
    engine = sa.create_engine(str(url).replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE runs SET {change} WHERE hash = 'a'")
    engine.dispose()
    with RunState(url) as state:
        rows = state.read(["a", "b"])
    assert rows["b"] == row("b")
    assert (rows["a"].outcome, rows["a"].result) == ("failed", None)
    assert "damaged after it was written" in str(rows["a"].error)


@pytest.mark.parametrize("column", [column.name for column in RUNS.columns])
@pytest.mark.parametrize("value", [b"\xff\xfe\x00", b"null", 5, "xyz", float("inf")])
def test_values_of_another_type_damage_one_row(column: str, value: Any, tmp_path: Path) -> None:
    """SQLite keeps any value in any column; the other row is read as it was written."""
    file = tmp_path / "runs.sqlite"
    with RunState(sqlite_url(file)) as state:
        state.add([row("a"), row("b")])
    with sqlite3.connect(file) as connection:
        connection.execute(f"UPDATE runs SET {column} = ? WHERE hash = 'a'", (value,))
    connection.close()
    with RunState(sqlite_url(file)) as state:
        rows = state.read(state.hashes())
    assert rows.pop("b") == row("b")
    for damaged in rows.values():
        assert (damaged.outcome, damaged.result) == ("failed", None)
        assert "damaged after it was written" in str(damaged.error)
        damaged.columns(), damaged.epochs()


def test_a_view_in_the_place_of_the_table_is_refused(tmp_path: Path) -> None:
    """It may have rows without end."""
    file = tmp_path / "runs.sqlite"
    endless = "WITH RECURSIVE n(hash) AS (SELECT 1 UNION ALL SELECT hash + 1 FROM n) SELECT hash FROM n"
    with sqlite3.connect(file) as connection:
        connection.execute(f"CREATE VIEW runs AS {endless}")
    connection.close()
    with pytest.raises(StateError, match="a view named runs"):
        RunState(sqlite_url(file)).hashes()


def test_a_damaged_page_of_the_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    with RunState(sqlite_url(file)) as state:
        state.add([row("name-of-a-run")])
    # The first is in the index of the table.
    file.write_bytes(file.read_bytes().replace(b"name-of-a-run", b"game-of-a-run", 1))
    with pytest.raises(StateError, match=r"runs\.sqlite is damaged \(.+\)\. Put a copy back, or move it away"):
        RunState(sqlite_url(file))


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
            with pytest.raises(StateError, match="was deleted or replaced while it was in use; put it back"):
                use()
    assert file.exists() == replaced
