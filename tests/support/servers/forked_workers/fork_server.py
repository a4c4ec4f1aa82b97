"""Imports what a run needs, and forks a process for each request.

A first server imports what does not know Ray. It forks one for each job, which imports the rest:
Ray reads the job's id from the environment on import, once. That one forks the workers of the job.
"""

import importlib
import json
import os
import runpy
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

WITHOUT_RAY = ("torch", "numba", "pandas", "pyarrow.dataset", "pydantic", "fsspec", "yaml")
WITH_RAY = ("pipeline_runtime.run.session",)
FIRST_IDLE_SECONDS = 60.0  # how long a first server stays after its last job
JOB_IDLE_SECONDS = 3.0  # and a job's server after its last worker
POLL_SECONDS = 0.2


def serve(
    address: str, idle_seconds: float, is_needed: Callable[[], bool], ready: Callable[[], object]
) -> None:
    """Fork processes until none has been left for a while, and end this process.

    Args:
        address: path of the socket to listen at; fork_client.py sends the requests.
        idle_seconds: how long it stays without a process that it forked.
        is_needed: says whether it may stay at all.
        ready: called once it listens.
    """
    alive: set[int] = set()
    used = time.monotonic()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        with suppress(OSError):  # who asked for it has gone
            ready()
        while is_needed() and (alive or time.monotonic() < used + idle_seconds):
            if select.select([listener], [], [], POLL_SECONDS)[0]:
                connection, _ = listener.accept()
                used = time.monotonic()
                child = os.fork()
                if child == 0:
                    listener.close()
                    _carry_out(connection)
                alive.add(child)
                connection.close()
            alive -= {pid for pid in alive if os.waitpid(pid, os.WNOHANG)[0]}
    Path(address).unlink(missing_ok=True)
    os._exit(0)


def _carry_out(connection: socket.socket) -> None:
    """Become the process of a request; the connection of a worker stays open until it ends."""
    _, standard, _, _ = socket.recv_fds(connection, 1, 3)
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    with connection.makefile("rb") as stream:
        request = json.load(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if address := request.get("serve"):
        sys.path[1:1] = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
        _import_with_ray(WITH_RAY)
        raylet = Path("/proc", request["env"]["RAY_RAYLET_PID"])

        def ready() -> None:
            with connection:
                connection.sendall(b"\n")

        serve(address, JOB_IDLE_SECONDS, raylet.exists, ready)
    os.setpgid(0, 0)  # Ray kills the process group of a worker that ends
    sys.argv = request["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    sys.modules["numpy"].random.seed()  # a new process would have a seed of its own
    connection.sendall(b"\n")
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()


def _import(modules: tuple[str, ...]) -> None:
    for module in modules:
        importlib.import_module(module)


def _import_with_ray(modules: tuple[str, ...]) -> None:
    """Import modules, and have Ray's native code draw no random id meanwhile.

    It draws from entropy of the process, of which each fork has a copy. Forks of a process that has
    drawn give the same ids to their tasks: each takes the other's objects, or is killed. On import,
    `ray.remote` draws the id of a class.
    """
    actor = importlib.import_module("ray.actor")
    ids = actor.ActorClassID
    actor.ActorClassID = SimpleNamespace(from_random=lambda: ids(os.urandom(ids.size())))
    _import(modules)
    actor.ActorClassID = ids


if __name__ == "__main__":
    _import(WITHOUT_RAY)
    serve(
        sys.argv[1],
        FIRST_IDLE_SECONDS,
        Path(sys.argv[1]).exists,
        lambda: print("listens", flush=True),
    )
