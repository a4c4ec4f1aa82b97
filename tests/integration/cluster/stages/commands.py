"""Runs `lastmile` as a user does, against a box, and looks at what it made there."""

import atexit
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from warm_lastmile import Ended, Lastmile

from pipeline_runtime.config import API_VERSION, KIND
from tools.cluster.box import Box

LASTMILE = str(Path(sys.executable).with_name("lastmile"))
POLL_SECONDS = 0.2


def manifest(name: str = "clicks", **spec: Any) -> str:
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {"dataset": {"parquet": {"uri": "t/"}}, **spec},
    }
    return json.dumps(document)


@cache
def _warm_lastmile() -> Lastmile:
    """Return the process that runs the commands of all users; it ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="lastmile-commands-")
    lastmile = Lastmile(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(lastmile.close)  # called before the other
    return lastmile


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Someone at a terminal, with a kubeconfig and a namespace.

    Attributes:
        kubeconfig: another than the box's administrator's.
    """

    box: Box
    namespace: str
    kubeconfig: Path | None = None

    def environment(self) -> dict[str, str]:
        kubeconfig = self.kubeconfig or self.box.kubeconfig
        return {**os.environ, "KUBECONFIG": str(kubeconfig)}

    def types(self, *arguments: str, stdin: str = "") -> Ended:
        """Run a command to its end, in the process that all users share."""
        command = (arguments[0], "-n", self.namespace, *arguments[1:])
        return _warm_lastmile().run(*command, stdin=stdin, env=self.environment())

    def reads(self, *arguments: str, stdin: str = "") -> str:
        """Type it, and read what it printed."""
        done = self.types(*arguments, stdin=stdin)
        assert done.code == 0, done.stderr
        return done.stdout

    def fails(self, *arguments: str, stdin: str = "", code: int = 1) -> str:
        """Type it, and read why it could not be done."""
        done = self.types(*arguments, stdin=stdin)
        assert done.code == code, (done.code, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stderr

    def experiment(self, name: str = "clicks") -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.reads("get", name, "-o", "json"))
        return document

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.box.kubectl(*arguments, "-n", self.namespace, stdin=stdin)
