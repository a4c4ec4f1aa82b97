"""Runs kubectl against one cluster, away from the user's own settings and caches."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.errors import KubectlError

TIMEOUT_SECONDS = 120.0  # of a command; one that has a --timeout of its own may take that besides
_OWN_TIMEOUT = re.compile(r"--timeout=(\d+)s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """A kubectl and the cluster that it talks to.

    Attributes:
        program: its path.
        kubeconfig: of the cluster.
        cache: a folder for kubectl's discovery cache.
    """

    program: Path
    kubeconfig: Path
    cache: Path

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return its output.

        Args:
            arguments: such as `"get", "pods", "-o", "name"`.
            stdin: its input, if an argument is `-`.

        Raises:
            KubectlError: it ended with a code other than 0, or not in time.
        """
        waits = (match[1] for text in arguments if (match := _OWN_TIMEOUT.fullmatch(text)))
        timeout_seconds = TIMEOUT_SECONDS + sum(map(float, waits))
        own = {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.cache), "KUBERC": "off"}
        try:
            done = subprocess.run(
                [str(self.program), *arguments],
                input=stdin or "",
                env={**os.environ, **own},
                capture_output=True,
                text=True,
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            said = f"it took longer than {timeout_seconds:.0f} s"
            raise KubectlError(arguments, said) from None
        if done.returncode != 0:
            raise KubectlError(arguments, done.stderr)
        return done.stdout
