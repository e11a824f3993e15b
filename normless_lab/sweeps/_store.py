"""The table of finished runs, in SQLite or PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from normless.errors import NormlessError
from normless.saving import digest_of_values
from normless_lab.sweeps._runs import RunRow

Answer = TypeVar("Answer")

RUNS = sa.Table(
    "runs",
    sa.MetaData(),
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("config", sa.JSON, nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("result", sa.JSON(none_as_null=True)),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("finished_at", sa.String(40), nullable=False),
    sa.Column("machine", sa.Text, nullable=False),
    sa.Column("versions", sa.JSON, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
)
# Of the values of a row; SQLite keeps others too.
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("hash", "kind", "outcome", "finished_at", "machine"), str),
    "config": dict,
    "versions": dict,
    "seconds": float,
    "error": str | None,
    "result": dict | None,
}
_VALUES = [column.name for column in RUNS.columns if column.name != "digest"]

# A part of such a password would be taken for a host, which messages name.
_UNQUOTED_PASSWORD = re.compile("://[^@]*[/?#].*@|@.*@")
# Hashes in one statement; SQLite and PostgreSQL accept 32,766 and more values.
BATCH = 1000
BUSY_SECONDS = 60.0
# Seconds between two attempts: the first value, and the largest, to which they double.
PAUSE_SECONDS, LONGEST_PAUSE = 0.25, 8.0
# Seconds for which a database that is being opened may refuse connections.
RESTART_SECONDS = 60.0
OPENING = "cannot be opened"


class StateError(NormlessError):
    """The table of runs cannot be opened or used; the message names the database and the reason."""


class RunState:
    """The table of finished runs; a context manager. It is created before the first row, not by reading.

    Each row has the SHA-256 of its values. A row that changed since it was written is read as a failed run, which
    ``normless sweep retry`` executes again.

    Args:
        url: SQLAlchemy's URL, such as sqlite:///FILE or postgresql://USER@HOST/DATABASE.
        patience: seconds for which a request is repeated while the server does not answer.
        opening: the same for the first request.
        on_wait: called with a sentence, once per request, when the table waits for the database.

    Raises:
        StateError: the database does not exist, its driver is not installed, it would not be persistent, or its file
            is damaged.
    """

    def __init__(
        self,
        url: str | sa.URL,
        *,
        patience: float = 300.0,
        opening: float = RESTART_SECONDS,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._shown = shown_url(url)
        self._patience, self._on_wait = opening, on_wait
        self._exists = False
        self._engine, self._file = _engine(url, self._shown)
        self._opened_file = _identity(self._file)
        if self._has_table():
            self._do(partial(_check_pages, shown=self._shown), OPENING)
        self._patience = patience

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def create(self) -> None:
        """Create the table if it is missing."""
        if not self._exists:
            self._do(lambda connection: connection.execute(CreateTable(RUNS, if_not_exists=True)), OPENING)
            self._exists = True

    def add(self, rows: Sequence[RunRow]) -> None:
        """Insert rows, all or none; ignore rows with a hash that is already in the table."""
        if not rows:
            return
        self.create()
        dialect: Any = postgresql if self._engine.dialect.name == "postgresql" else sqlite
        statement = dialect.insert(RUNS).on_conflict_do_nothing(index_elements=[RUNS.c.hash])
        # Not asdict, which would copy every number of every epoch.
        values = [{name: getattr(row, name) for name in _VALUES} for row in rows]
        values = [row | {"digest": digest_of_values(_json(json.dumps(row)))} for row in values]
        self._do(lambda connection: connection.execute(statement, values))

    def finished(self, hashes: Collection[str]) -> set[str]:
        """Those of the hashes that have a row, of whatever outcome."""
        return {row["hash"] for row in self._select(hashes, RUNS.c.hash)}

    def read(self, hashes: Collection[str]) -> dict[str, RunRow]:
        """Return the rows with these hashes, by hash."""
        return {row["hash"]: _row(**row) for row in self._select(hashes, RUNS)}

    def hashes(self) -> set[str]:
        """Every run that has a row."""
        if not self._has_table():
            return set()
        found = self._do(lambda connection: connection.execute(sa.select(RUNS.c.hash)).scalars().all())
        # SQLite keeps values of any type in a column.
        return {name for name in found if isinstance(name, str)}

    def remove(self, hashes: Collection[str]) -> None:
        """Delete the rows of these runs."""
        for batch in _batches(hashes if self._has_table() else ()):
            self._do(partial(sa.Connection.execute, statement=sa.delete(RUNS).where(RUNS.c.hash.in_(batch))))

    def _select(self, hashes: Collection[str], what: Any) -> Iterator[dict[str, Any]]:
        for batch in _batches(hashes if self._has_table() else ()):

            def rows(connection: sa.Connection, batch: list[str] = batch) -> Sequence[Any]:
                return connection.execute(sa.select(what).where(RUNS.c.hash.in_(batch))).mappings().all()

            yield from map(dict, self._do(rows))

    def _has_table(self) -> bool:
        """Whether there is a table, also of another process by now; a missing file is not created."""
        if not self._exists and (self._file is None or self._file.exists()):
            names, views = self._do(
                lambda connection: [
                    sa.inspect(connection).get_table_names(),
                    sa.inspect(connection).get_view_names(),
                ],
                OPENING,
            )
            if RUNS.name in views:
                raise StateError(
                    f"The runs' database {self._shown} has a view named {RUNS.name} in place of the table of runs: "
                    "normless did not write it. Name another database."
                )
            self._exists = RUNS.name in names
        return self._exists

    def _do(self, work: Callable[[sa.Connection], Answer], failure: str = "failed") -> Answer:
        """Run a transaction, and repeat it while the database is away; it must be idempotent."""
        deadline, pause = time.monotonic() + self._patience, PAUSE_SECONDS
        while True:
            try:
                with self._engine.begin() as connection:
                    answer = work(connection)
                    self._check_file()
                    return answer
            except DBAPIError as error:
                said = f"The runs' database {self._shown} {failure}: {' '.join(str(error.orig).split())}"
                temporary = _is_restarting if failure == OPENING else _is_temporary
                if not temporary(error) or time.monotonic() + pause > deadline:
                    raise StateError(f"{said}.") from error
            if pause == PAUSE_SECONDS:
                self._on_wait(f"{said}; waiting up to {self._patience:g} s for it.")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _check_file(self) -> None:
        """SQLite goes on with a file that was deleted, and its rows are lost."""
        now = _identity(self._file)
        if self._opened_file not in (None, now):
            raise StateError(
                f"The runs' database {self._shown} was deleted or replaced while it was in use; "
                "put it back, or start again, with a new one."
            )
        self._opened_file = now


def sqlite_url(path: Path) -> sa.URL:
    """The URL of a SQLite file."""
    return sa.URL.create("sqlite", database=str(path))


def shown_url(url: str | sa.URL) -> str:
    """A database's URL as messages may show it, without query and without what is or may be a password."""
    try:
        place = sa.make_url(url)
    except (SQLAlchemyError, ValueError):
        return "***"
    if place.drivername.startswith("sqlite"):
        return f"sqlite:///{place.database or ''}"
    if _UNQUOTED_PASSWORD.search(str(url)):
        return f"{place.drivername}://***"
    return place.set(query={}).render_as_string(hide_password=True)


def _engine(url: str | sa.URL, shown: str) -> tuple[sa.Engine, Path | None]:
    """Connections to a database, ready for several processes at once, and the file of SQLite."""
    problem = None
    try:
        place = sa.make_url(url)
        if place.drivername in ("postgres", "postgresql"):
            place = place.set(drivername="postgresql+psycopg")
        kind = place.get_backend_name()
        if shown.endswith("***"):
            problem = "in a password, @ / ? # are written as %40 %2F %3F %23"
        elif kind == "postgresql":
            return sa.create_engine(place, pool_pre_ping=True, pool_size=2, json_deserializer=_json), None
        elif kind != "sqlite":
            problem = f"{kind} is neither SQLite nor PostgreSQL"
        elif place.query:
            problem = "no ? can be in it; name the folder by --out instead"
        elif place.database in (None, "", ":memory:"):
            problem = "a database in memory, and the runs in it, would be gone with this process"
        else:
            file = Path(str(place.database))
            read_only = _is_read_only(file, shown)
            if read_only:
                # SQLite would write a log beside the file, even to read it.
                place = sa.URL.create(
                    "sqlite", database=file.absolute().as_uri(), query={"immutable": "1", "uri": "true"}
                )
            engine = sa.create_engine(place, connect_args={"timeout": BUSY_SECONDS}, json_deserializer=_json)
            sa.event.listen(engine, "connect", _read_any_text if read_only else _prepare_sqlite)
            return engine, file
    except ModuleNotFoundError as error:
        raise StateError(
            f"{error.name}, the driver of {shown}, is not installed: pip install 'normless[cluster]'."
        ) from error
    except (SQLAlchemyError, ValueError):
        problem = "it is not a URL of that form"
    # Not chained: the errors of SQLAlchemy quote the URL.
    raise StateError(
        f"Expected a database as sqlite:///FILE or postgresql://USER@HOST/DATABASE, got {shown}: {problem}."
    )


def _is_read_only(file: Path, shown: str) -> bool:
    """Whether a database is in a folder that cannot be written; a StateError if it has a log there."""
    if not file.is_file() or os.access(file.parent, os.W_OK):
        return False
    log = file.with_name(f"{file.name}-wal")
    if log.is_file() and log.stat().st_size:
        raise StateError(
            f"The runs' database {shown} cannot be written, and its log {log.name} is not folded in; copy the folder "
            "to a place that can be written, and read it there."
        )
    return True


def _identity(file: Path | None) -> tuple[int, int] | None:
    """Which file a path leads to; None if to none."""
    try:
        found = None if file is None else file.stat()
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def _read_any_text(connection: Any, _: Any) -> None:
    """Read a damaged text as one, which its row's digest tells."""
    connection.text_factory = lambda text: text.decode("utf-8", "replace")


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """Let readers and a writer work at the same time, and a killed process leave the file intact."""
    _read_any_text(connection, _)
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _check_pages(connection: sa.Connection, shown: str) -> None:
    """Raise a StateError if the pages of a SQLite file disagree."""
    if connection.dialect.name == "sqlite":
        problem = connection.execute(sa.text("PRAGMA integrity_check(1)")).scalar_one()
        if problem != "ok":
            raise StateError(
                f"The runs' database {shown} is damaged ({' '.join(problem.split())}). Put a copy back, or move it "
                "away: its runs start again."
            )


def _row(digest: str, **values: Any) -> RunRow:
    """A row as it was written, or a failed run."""
    is_typed = all(isinstance(values[name], kind) for name, kind in _TYPES.items())
    if is_typed and digest == digest_of_values(values):
        return RunRow(**values)
    error = "its row in the database was damaged after it was written; normless sweep retry starts the run again"
    whole = {name: value for name, value in values.items() if isinstance(value, _TYPES[name])}
    lacking: dict[str, Any] = {"hash": "", "kind": "", "config": {}, "seconds": 0.0, "finished_at": "", "machine": ""}
    return RunRow(**lacking | whole | {"outcome": "failed", "error": error, "result": None, "versions": {}})


def _json(text: str | bytes) -> Any:
    """What a cell says; None for one that was damaged, which its row's digest tells."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _is_restarting(error: DBAPIError) -> bool:
    """Whether a server is being restarted, or another process opens the same new database."""
    # SQLite does not wait for a lock while it changes a file's journal mode, whatever the timeout.
    words = ("refused", "starting up", "shutting down", "already exists", "database is locked")
    return any(text in str(error.orig) for text in words)


def _is_temporary(error: DBAPIError) -> bool:
    """Whether a later attempt may succeed: the connection was lost or refused, or a file is locked."""
    text = str(error.orig)
    if type(error.orig).__module__.startswith("sqlite3"):
        return "locked" in text or "busy" in text
    return error.connection_invalidated or type(error).__name__ == "OperationalError"


def _batches(hashes: Collection[str]) -> Iterator[list[str]]:
    listed = sorted(set(hashes))
    for start in range(0, len(listed), BATCH):
        yield listed[start : start + BATCH]
