from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from postgres_helpers import NoPostgresError, ThrowawayPostgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[ThrowawayPostgres]:
    """A running server; where there is none, the tests that need it are skipped, or fail where it must be there."""
    try:
        server = ThrowawayPostgres()
    except NoPostgresError as error:
        if "postgres" in os.environ.get("NORMLESS_TESTS_REQUIRE", "").split():
            raise
        pytest.skip(str(error))
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres_url(postgres_server: ThrowawayPostgres, request: pytest.FixtureRequest) -> str:
    """The URL of a new and empty database."""
    return postgres_server.new_database(f"{request.node.name[:50]}-{os.urandom(4).hex()}")
