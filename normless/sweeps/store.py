"""The table of finished runs, in SQLite or PostgreSQL."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.schema import CreateTable

from normless.errors import NormlessError
from normless.sweeps.runs import RunRow

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
)

# Hashes in one statement; SQLite and PostgreSQL accept 32,766 and more values.
BATCH = 1000
BUSY_SECONDS = 60.0
PAUSE_SECONDS = 0.5
# For so long a database that is being opened may refuse connections.
RESTART_SECONDS = 15.0


class StateError(NormlessError):
    """The table of runs cannot be opened or used; the message names the database and the reason."""


class RunState:
    """The table of finished runs; a context manager.

    Args:
        url: SQLAlchemy's, as sqlite:///FILE or postgresql://USER@HOST/DATABASE; the table is created if missing.
        patience: seconds for which a request is repeated while the server does not answer.

    Raises:
        StateError: there is no such database, or its driver is not installed.
    """

    def __init__(self, url: str, *, patience: float = 300.0) -> None:
        self.url = url
        self._patience = RESTART_SECONDS
        try:
            self._shown = sa.make_url(url).render_as_string(hide_password=True)
            self._engine = _engine(url)
            self._do(_create_table, "cannot be opened", _is_restarting)
        except ModuleNotFoundError as error:
            raise StateError(
                f"{error.name}, the driver of {self._shown}, is not installed: pip install 'normless[postgres]'."
            ) from error
        except (ArgumentError, NoSuchModuleError) as error:
            without_password = re.sub(r"(?<=:)[^:@/]*(?=@)", "***", url)
            raise StateError(
                "Expected a database as sqlite:///FILE or postgresql://USER@HOST/DATABASE, "
                f"got {without_password!r}: {error}."
            ) from error
        self._patience = patience

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def add(self, rows: Sequence[RunRow]) -> None:
        """Insert rows, all or none; a row whose hash is in the table already is ignored."""
        if not rows:
            return
        dialect: Any = postgresql if self._engine.dialect.name == "postgresql" else sqlite
        statement = dialect.insert(RUNS).on_conflict_do_nothing(index_elements=[RUNS.c.hash])
        # Not asdict, which would copy every number of every epoch.
        values = [{column.name: getattr(row, column.name) for column in RUNS.columns} for row in rows]
        self._do(lambda connection: connection.execute(statement, values))

    def finished(self, hashes: Collection[str]) -> set[str]:
        """Those of the hashes that have a row, of whatever outcome."""
        return {row["hash"] for row in self._select(hashes, RUNS.c.hash)}

    def read(self, hashes: Collection[str]) -> dict[str, RunRow]:
        """The rows of those of the hashes that have one, by hash."""
        return {row["hash"]: RunRow(**row) for row in self._select(hashes, RUNS)}

    def hashes(self) -> set[str]:
        """Every run that has a row."""
        return set(self._do(lambda connection: connection.execute(sa.select(RUNS.c.hash)).scalars().all()))

    def remove(self, hashes: Collection[str]) -> None:
        """Delete the rows of these runs."""
        for batch in _batches(hashes):
            self._do(partial(sa.Connection.execute, statement=sa.delete(RUNS).where(RUNS.c.hash.in_(batch))))

    def _select(self, hashes: Collection[str], what: Any) -> Iterator[dict[str, Any]]:
        for batch in _batches(hashes):
            statement = sa.select(what).where(RUNS.c.hash.in_(batch))
            yield from map(dict, self._do(partial(_mappings, statement)))

    def _do(
        self,
        work: Callable[[sa.Connection], Answer],
        failure: str = "failed",
        is_temporary: Callable[[DBAPIError], bool] | None = None,
    ) -> Answer:
        """Carry out a transaction, and repeat it while the database is away; it must be idempotent."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                with self._engine.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                if not (is_temporary or _is_temporary)(error) or time.monotonic() > deadline:
                    raise StateError(f"The runs' database {self._shown} {failure}: {error.orig}.") from error
            time.sleep(PAUSE_SECONDS)


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file; its folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}"


def _engine(url: str) -> sa.Engine:
    """Connections to a database, ready for several processes at once."""
    place = sa.make_url(url.replace("postgres://", "postgresql://", 1) if url.startswith("postgres://") else url)
    if place.drivername == "postgresql":
        place = place.set(drivername="postgresql+psycopg")
    if place.get_backend_name() not in ("sqlite", "postgresql"):
        raise ArgumentError(f"{place.get_backend_name()} is neither SQLite nor PostgreSQL")
    if place.get_backend_name() == "postgresql":
        return sa.create_engine(place, pool_pre_ping=True, pool_size=2, json_deserializer=orjson.loads)
    engine = sa.create_engine(place, connect_args={"timeout": BUSY_SECONDS}, json_deserializer=orjson.loads)
    sa.event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """Let readers and a writer work at the same time, and a killed process leave the file intact."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _create_table(connection: sa.Connection) -> None:
    connection.execute(CreateTable(RUNS, if_not_exists=True))


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


def _mappings(statement: sa.Select[Any], connection: sa.Connection) -> Sequence[Any]:
    return connection.execute(statement).mappings().all()


def _batches(hashes: Collection[str]) -> Iterator[list[str]]:
    listed = sorted(set(hashes))
    for start in range(0, len(listed), BATCH):
        yield listed[start : start + BATCH]
