"""A running `lastmile operator --dev`, as a process of its own, and its log."""

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commands import LASTMILE, POLL_SECONDS, User

SMALL = {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"memory": "100Mi"}}
SETTINGS = {
    "runtimeImage": "example.com/lastmile:none",
    "storageRoot": "s3://bucket/team",
    "resources": {"head": SMALL, "trainers": SMALL, "dataWorkers": SMALL},
    # kwok lets the pods that keep a history run for ever; a cluster waits so long for each.
    "history": {"timeoutSeconds": 10},
}
STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A running operator, and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.log.read_text())
        assert found is not None
        return found.group()

    def answer(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path) as response:
            text: str = response.read().decode()
            return text

    def metrics(self) -> dict[str, str]:
        lines = self.answer("/metrics").splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))

    def until(self, is_true: Callable[[], bool]) -> None:
        """Wait for what is bound to happen while it runs."""
        while not is_true():
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(POLL_SECONDS)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=STOP_SECONDS)


@contextmanager
def operating(
    user: User,
    folder: Path,
    *,
    settings: Mapping[str, object] = SETTINGS,
    arguments: Sequence[str] | None = None,
) -> Iterator[Operator]:
    """Run the operator; it is killed at the end at the latest.

    Args:
        arguments: None: the user's namespace is named.
    """
    config, log = folder / "settings.yaml", folder / "operator.log"
    config.write_text(json.dumps(settings))
    scope = ["-n", user.namespace] if arguments is None else arguments
    options = ["--dev", "--config", str(config), *scope, "--port", "0"]
    with (
        log.open("wb") as stream,
        subprocess.Popen(
            [LASTMILE, "operator", *options],
            env=user.environment(),
            stdout=stream,
            stderr=stream,
        ) as process,
    ):
        operator = Operator(process=process, log=log)
        try:
            operator.until(lambda: "reconciling" in log.read_text())
            yield operator
        finally:
            process.kill()
