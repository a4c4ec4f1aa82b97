"""Runs `lastmile` as a user does, against a box, and looks at what it made there."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline_runtime.config import API_VERSION, KIND
from tools.cluster.box import Box

LASTMILE = str(Path(sys.executable).with_name("lastmile"))
POLL_SECONDS = 0.2
TIMEOUT_SECONDS = 120.0  # each command is done within seconds on an idle machine


def manifest(name: str = "clicks", **spec: Any) -> str:
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {"dataset": {"parquet": {"uri": "t/"}}, **spec},
    }
    return json.dumps(document)


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

    def types(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [LASTMILE, arguments[0], "-n", self.namespace, *arguments[1:]],
            input=stdin,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )

    def reads(self, *arguments: str, stdin: str = "") -> str:
        """Type it, and read what it printed."""
        done = self.types(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def fails(self, *arguments: str, stdin: str = "", code: int = 1) -> str:
        """Type it, and read why it could not be done."""
        done = self.types(*arguments, stdin=stdin)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stderr

    def experiment(self, name: str = "clicks") -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.reads("get", name, "-o", "json"))
        return document

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.box.kubectl(*arguments, "-n", self.namespace, stdin=stdin)
