"""The one table of finished runs, in SQLite or PostgreSQL: what is in it has run, and nothing else is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import orjson
from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Engine,
    Float,
    MetaData,
    Select,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    inspect,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.schema import CreateTable

from normless.errors import NormlessError
from normless.sweeps.runs import RunRow

Answer = TypeVar("Answer")

RUNS = Table(
    "runs",
    MetaData(),
    Column("hash", String(64), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("config", JSON, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("error", Text),
    Column("result", JSON(none_as_null=True)),
    Column("seconds", Float, nullable=False),
    Column("finished_at", String(40), nullable=False),
    Column("machine", Text, nullable=False),
    Column("versions", JSON, nullable=False),
)

# Hashes asked for in one statement; SQLite and PostgreSQL take 32,766 and more values.
BATCH = 1000
BUSY_SECONDS = 60.0
PAUSE_SECONDS = 0.5


class StateError(NormlessError):
    """The table of runs cannot be opened; the message says where it was looked for and why it is not there."""


class RunState:
    """The table of finished runs; a context manager.

    Args:
        url: SQLAlchemy's, as sqlite:///FILE or postgresql://USER@HOST/DATABASE; the table is made if it is not there.
        patience: seconds for which a server that stopped answering is asked again.

    Raises:
        StateError: there is no such database, or the package that speaks to it is not installed.
    """

    def __init__(self, url: str, *, patience: float = 300.0) -> None:
        self.url = url
        self._patience = patience
        try:
            self._engine = _engine(url)
            _make_table(self._engine)
        except ModuleNotFoundError as error:
            raise StateError(
                f"{error.name} is not installed, which speaks to {_shown(url)}: pip install 'normless[postgres]'."
            ) from error
        except (ArgumentError, NoSuchModuleError) as error:
            raise StateError(
                f"Expected a database as sqlite:///FILE or postgresql://USER@HOST/DATABASE, got {url!r}: {error}."
            ) from error
        except DBAPIError as error:
            raise StateError(f"The runs' database {_shown(url)} cannot be opened: {error.orig}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def add(self, rows: Sequence[RunRow]) -> None:
        """Keep rows, all at once or none; a row whose hash is there already is left as it was first kept."""
        if not rows:
            return
        dialect: Any = postgresql if self._engine.dialect.name == "postgresql" else sqlite
        statement = dialect.insert(RUNS).on_conflict_do_nothing(index_elements=[RUNS.c.hash])
        # As in the class, and not by asdict: that would copy every number of every epoch.
        values = [{column.name: getattr(row, column.name) for column in RUNS.columns} for row in rows]
        self._do(lambda connection: connection.execute(statement, values))

    def finished(self, hashes: Collection[str]) -> set[str]:
        """Those of the hashes that have a row, of whatever outcome."""
        return {found for batch in _batches(hashes) for found in self._column(RUNS.c.hash.in_(batch))}

    def read(self, hashes: Collection[str]) -> dict[str, RunRow]:
        """The rows of those of the hashes that have one, by hash."""
        rows: dict[str, RunRow] = {}
        for batch in _batches(hashes):
            statement = select(RUNS).where(RUNS.c.hash.in_(batch))
            rows |= {row["hash"]: RunRow(**row) for row in self._do(partial(_mappings, statement))}
        return rows

    def hashes(self) -> set[str]:
        """Every run that has a row."""
        return set(self._column(None))

    def failed(self, hashes: Collection[str]) -> set[str]:
        """Those of the hashes whose run failed."""
        return {
            found
            for batch in _batches(hashes)
            for found in self._column(RUNS.c.hash.in_(batch) & (RUNS.c.outcome == "failed"))
        }

    def remove(self, hashes: Collection[str]) -> None:
        """Forget these runs."""
        for batch in _batches(hashes):
            self._do(partial(Connection.execute, statement=delete(RUNS).where(RUNS.c.hash.in_(batch))))

    def _column(self, condition: Any) -> Sequence[str]:
        statement = select(RUNS.c.hash) if condition is None else select(RUNS.c.hash).where(condition)
        return self._do(lambda connection: connection.execute(statement).scalars().all())

    def _do(self, work: Callable[[Connection], Answer]) -> Answer:
        """Do it in a transaction; again, while the database is away. Whatever is done here may be done twice."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                with self._engine.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                if not _may_pass(error) or time.monotonic() > deadline:
                    raise StateError(f"The runs' database {_shown(self.url)} failed: {error.orig}.") from error
            time.sleep(PAUSE_SECONDS)


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}"


def _engine(url: str) -> Engine:
    """Connections to a database, ready for several processes at once."""
    place = make_url(url.replace("postgres://", "postgresql://", 1) if url.startswith("postgres://") else url)
    if place.drivername == "postgresql":
        place = place.set(drivername="postgresql+psycopg")
    if place.get_backend_name() not in ("sqlite", "postgresql"):
        raise ArgumentError(f"{place.get_backend_name()} is neither SQLite nor PostgreSQL")
    if place.get_backend_name() == "postgresql":
        return create_engine(place, pool_pre_ping=True, pool_size=2, json_deserializer=orjson.loads)
    engine = create_engine(place, connect_args={"timeout": BUSY_SECONDS}, json_deserializer=orjson.loads)
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """Readers and one writer at a time do not wait for each other; a killed process leaves the file whole."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _make_table(engine: Engine) -> None:
    try:
        with engine.begin() as connection:
            connection.execute(CreateTable(RUNS, if_not_exists=True))
    except DBAPIError:
        # Two processes may make it at the same time, and one of them is told that it is there.
        if not inspect(engine).has_table(RUNS.name):
            raise


def _may_pass(error: DBAPIError) -> bool:
    """Whether the same may work a little later: the connection was lost, no new one is made, a file is locked."""
    text = str(error.orig)
    if type(error.orig).__module__.startswith("sqlite3"):
        return "locked" in text or "busy" in text
    return error.connection_invalidated or type(error).__name__ == "OperationalError"


def _shown(url: str) -> str:
    """The URL without its password."""
    return make_url(url).render_as_string(hide_password=True)


def _mappings(statement: Select[Any], connection: Connection) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(statement).mappings()]


def _batches(hashes: Collection[str]) -> Iterator[list[str]]:
    listed = sorted(set(hashes))
    for start in range(0, len(listed), BATCH):
        yield listed[start : start + BATCH]
