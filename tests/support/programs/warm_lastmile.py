"""A warm `lastmile`: one process that has paid for its imports runs one command line after another.

A process of its own costs one to two CPU seconds of imports for each command. Tests start one only
where the process itself is under test.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# A run takes 15 to 40 seconds on two busy cores; far beyond that it hangs.
RUN_SECONDS = 240.0

# Takes requests as JSON lines and runs each command line as the console script would.
_SERVER = """
import io, json, os, sys
from pipeline_runtime import cli
import pipeline_runtime.run.session
requests, reply = sys.stdin, os.fdopen(os.dup(1), "w", buffering=1)
for line in requests:
    request = json.loads(line)
    for number, path in ((1, request["stdout"]), (2, request["stderr"])):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin = io.TextIOWrapper(io.BytesIO(request["stdin"].encode()), encoding="utf-8")
    sys.argv = ["lastmile", *request["args"]]
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    reply.write(json.dumps(code) + "\\n")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The exit status of a command line, and its output."""

    code: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


class Lastmile:
    """One process that runs `lastmile` command lines, one after another."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        """Start nothing yet: the first command line does.

        Args:
            folder: for the output of the command lines.
            env: of all command lines, added to this process's.
        """
        self._folder = folder
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[str] | None = None
        self._calls = 0
        self._turn = threading.Lock()

    def run(
        self,
        *args: str,
        cwd: Path | None = None,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run a command line to its end.

        Args:
            cwd: its working directory; by default the folder of this object.
            stdin: what it reads from standard input.
            env: of this command line alone, added to that of all.

        Raises:
            TimeoutError: it did not end within RUN_SECONDS.
        """
        with self._turn:
            process = self._running()
            out, err = self._folder / f"{self._calls}.out", self._folder / f"{self._calls}.err"
            self._calls += 1
            request = {
                "args": args,
                "stdout": str(out),
                "stderr": str(err),
                "stdin": stdin,
                "cwd": str(cwd or self._folder),
                "env": {**self._env, **(env or {})},
            }
            assert process.stdin
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            code = self._reply(process, err)
            return Ended(code=code, stdout=out.read_text(), stderr=err.read_text())

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self._env,
                cwd=self._folder,
            )
        return self._process

    def _reply(self, process: subprocess.Popen[str], err: Path) -> int:
        assert process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(RUN_SECONDS):
                self.close()
                raise TimeoutError(f"no end after {RUN_SECONDS} s:\n{err.read_text()}")
        line = process.stdout.readline()
        assert line, f"the process died:\n{err.read_text()}"
        code: int = json.loads(line)
        return code

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
