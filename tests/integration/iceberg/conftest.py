"""Catalogs of Iceberg that tests share: upstream's REST catalog, and a SQL catalog's PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from iceberg_rest import RestProxy, expire_by_java, running_rest_server
from postgres_server import running_postgres

from tools.build_tools import find_postgres
from tools.go_tools import ToolError
from tools.packages import ICEBERG_REST, find_jars


@pytest.fixture(scope="session")
def rest_jars(skip_unless_ci: Callable[[str], NoReturn]) -> Path:
    """Find the jars of upstream's REST catalog."""
    try:
        return find_jars(ICEBERG_REST)
    except ToolError as error:
        skip_unless_ci(str(error))


@pytest.fixture(scope="session")
def rest_port(rest_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run upstream's REST catalog on a loopback port; it accepts everybody."""
    with running_rest_server(rest_jars, tmp_path_factory.mktemp("rest")) as port:
        yield port


@pytest.fixture(scope="session")
def expire(rest_jars: Path, rest_port: int) -> Callable[[str], None]:
    """Return a function that expires the snapshots of a table as Java does, with their files."""
    return partial(expire_by_java, rest_jars, rest_port)


@pytest.fixture
def rest(rest_port: int) -> Iterator[RestProxy]:
    """Put a proxy of this test before the REST catalog, which wants a token and fails on demand.

    The tables are shared between tests: each has a namespace of its own.
    """
    proxy = RestProxy(upstream_port=rest_port)
    with proxy.serving():
        yield proxy


@pytest.fixture(scope="session")
def postgres_uri(
    tmp_path_factory: pytest.TempPathFactory, skip_unless_ci: Callable[[str], NoReturn]
) -> Iterator[str]:
    """Run PostgreSQL with an empty database; return SQLAlchemy's URI of it, password included."""
    try:
        program = find_postgres()
    except ToolError as error:
        skip_unless_ci(str(error))
    with running_postgres(program, tmp_path_factory.mktemp("postgres")) as uri:
        yield uri
