"""A real PostgreSQL on this machine, for SQL catalogs."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
from loopback import free_ports
from server_process import running_server

START_SECONDS = 60.0  # it is ready in one, unless the machine is very busy
USER = "lastmile"
# PostgreSQL refuses to run as root. In a user namespace root has another number.
AS_ANOTHER_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


@contextmanager
def running_postgres(program: Path, folder: Path) -> Iterator[str]:
    """Run a server over a folder; yield SQLAlchemy's URI of its database, password included."""
    password, [port] = secrets.token_hex(16), free_ports(1)
    (folder / "password").write_text(password)
    prefix = AS_ANOTHER_USER if os.geteuid() == 0 else ()
    # Those of Debian's that is unpacked, not installed: PREFIX/lib/postgresql/15/bin/postgres
    libraries = ":".join(str(path) for path in program.parents[3].glob("*-linux-gnu"))
    env = {**os.environ, "LD_LIBRARY_PATH": libraries, "LC_ALL": "C"}
    make = (program.with_name("initdb"), "-D", folder / "data", "-U", USER, "-A", "scram-sha-256")
    subprocess.run(
        [*prefix, *map(str, make), "--no-sync", f"--pwfile={folder}/password"],
        env=env,
        check=True,
        capture_output=True,
    )
    settings = (
        f"port={port}",
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "fsync=off",
    )
    command = [*prefix, str(program), "-D", str(folder / "data")]
    command += [word for setting in settings for word in ("-c", setting)]
    log = folder / "postgres.log"

    def is_ready() -> bool:
        return _answers(port, password)

    with running_server(command, log, is_ready, start_seconds=START_SECONDS, env=env):
        yield f"postgresql+psycopg2://{USER}:{password}@127.0.0.1:{port}/postgres"


def _answers(port: int, password: str) -> bool:
    try:
        psycopg2.connect(
            host="127.0.0.1", port=port, user=USER, password=password, dbname="postgres"
        ).close()
    except psycopg2.OperationalError:
        return False
    return True
