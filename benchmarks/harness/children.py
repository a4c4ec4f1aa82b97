"""A process that answers requests, one JSON document per line.

The process may run the code of another commit: `checkout` makes a worktree of it. The script of the
child lies outside that, and answers by `serving.serve`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.harness.errors import BenchmarkError

ROOT: Final = Path(__file__).parents[2]
_STOP_SECONDS: Final = 60.0  # Ray needs tens of seconds to stop on a busy machine


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check a commit out into a worktree of its own, and remove that at the end."""
    with tempfile.TemporaryDirectory() as folder:
        worktree = Path(folder).resolve() / "checkout"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(worktree), commit], check=True)
        try:
            yield worktree
        finally:
            subprocess.run([*git, "remove", "--force", str(worktree)], check=True)


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment of a process that runs the code of a checkout."""
    given = os.environ.get("PYTHONPATH")
    path = [str(folder), str(folder / "operator"), *([given] if given else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


class Child:
    """A process that answers requests; use it as a context.

    Args:
        name: for messages.
        command: arguments of Python, such as `-m` and a module that calls `serve`.
        environment: of the process; that of this one by default.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self.started_at = time.time()
        self._process = subprocess.Popen(
            [sys.executable, "-P", *command],
            env=dict(environment or environment_of(ROOT)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self.pid = self._process.pid
        try:
            self.hello = self._receive()
        except BenchmarkError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Any) -> Any:
        """Send a request and return the answer. Raises BenchmarkError if the process fails."""
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        return self._receive()

    def close(self) -> None:
        """End the process, which takes the end of its requests as the order to stop."""
        with suppress(BrokenPipeError):
            self._requests.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()

    def _receive(self) -> Any:
        line = self._answers.readline()
        answer = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            raise BenchmarkError(f"{self._name} failed:\n{answer['error']}")
        return answer["answer"]
