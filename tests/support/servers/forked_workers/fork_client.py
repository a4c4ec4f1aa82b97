"""The process that Ray starts as a worker: it asks for a fork, and waits until that ends."""

import argparse
import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import fork_server


def run_worker(arguments: list[str]) -> None:
    """Run a worker in a fork, and end this process with it.

    Returns where no fork is possible: the runtime environment wants more than variables, or a
    server has just ended.

    Args:
        arguments: those of Ray's setup_worker.py.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    options, worker = parser.parse_known_args(arguments)
    context = json.loads(options.serialized_runtime_env_context)
    executable = context.get("py_executable") or sys.executable
    wants_more = context.get("command_prefix") or context.get("override_worker_entrypoint")
    if wants_more or executable != sys.executable or "RAY_JOB_ID" not in os.environ:
        return
    variables = {
        name: os.path.expandvars(value) for name, value in context.get("env_vars", {}).items()
    }
    # glibc reads its variables when a process starts, and Ray its own on import: those of Ray Train
    # are read later, and fork_server.py sets the path.
    late = ("RAY_TRAIN_", "PYTHONPATH")
    early = {name: value for name, value in variables.items() if not name.startswith(late)}
    address = _address(early)
    path = variables.get("PYTHONPATH", "")
    job_address = _address(early, path, os.environ["RAY_JOB_ID"], os.environ["RAY_RAYLET_PID"])
    env = {**os.environ, **variables}
    try:
        with address.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not job_address.exists():
                if not address.exists():
                    _start_server(address, env)
                _request(address, {"serve": str(job_address), "env": env}).close()
        connection = _request(job_address, {"argv": worker, "env": env})
    except OSError:
        for stale in (address, job_address):  # the next worker starts new servers
            stale.unlink(missing_ok=True)
        return
    try:
        connection.recv(1)  # returns when the fork ends, which closes the connection
    finally:
        os._exit(0)


def _address(*fixed: Any) -> Path:
    """Return the socket of the server for processes that have something in common."""
    key = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]
    return Path(os.environ["LASTMILE_FORKS"], key)


def _start_server(address: Path, env: dict[str, str]) -> None:
    """Start a server, and return once it listens."""
    with address.with_suffix(".log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, fork_server.__file__, str(address)],
            # The path is that of the first job; threads are as Ray has them for a worker.
            env={**env, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ray kills the process group of a worker that ends
        )
    assert server.stdout
    server.stdout.readline()


def _request(address: Path, request: dict[str, Any]) -> socket.socket:
    """Send a request; return the connection once it is carried out.

    Raises:
        OSError: no server listens, or it ended meanwhile.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(address))
    socket.send_fds(connection, [b"\n"], [0, 1, 2])
    connection.sendall(json.dumps({**request, "cwd": os.getcwd()}).encode())
    connection.shutdown(socket.SHUT_WR)
    if not connection.recv(1):
        raise ConnectionError
    return connection
