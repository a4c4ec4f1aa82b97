"""The operator as the README has users install it: by its chart, into pods of its own."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from helm_chart import CHART, RELEASE, Helm

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPERATOR_NAMESPACE = "lastmile-system"
REGISTRY = "registry.example.com/lastmile"  # the README's
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
IMAGES = {name: f"{REGISTRY}/lastmile-{name}:{VERSION}" for name in ("operator", "runtime")}


def commands_after(start: str) -> list[list[str]]:
    """Return the commands of the README's console block with this start, without output."""
    [block] = re.findall(rf"^```console\n(\$ {re.escape(start)}.*?)^```", README, re.M | re.S)
    text = block.replace("\\\n", " ")
    return [shlex.split(line[2:], comments=True) for line in text.splitlines() if line[:2] == "$ "]


INSTALL, APPLY = commands_after("helm install")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The chart on a cluster.

    Attributes:
        values: beside what the README gives: what this small node needs.
    """

    helm: Helm
    values: dict[str, Any]

    def install(self) -> None:
        """Install by the README's commands, word for word."""
        program, verb, *arguments = INSTALL
        assert (program, verb, arguments[0]) == ("helm", "install", RELEASE)
        self._give(verb, *(str(CHART) if a == "charts/lastmile" else a for a in arguments[1:]))

    def is_installed(self) -> bool:
        listed = self.helm("list", "--short", "--namespace", OPERATOR_NAMESPACE)
        return RELEASE in listed.split()

    def upgrade(self, **values: Any) -> None:
        """As docs/operating/install.md says, to these values."""
        options = ("--namespace", OPERATOR_NAMESPACE, "--wait", "--reset-then-reuse-values")
        self._give("upgrade", str(CHART), *options, **values)

    def command(self, verb: str, *options: str) -> None:
        """Roll it back, or uninstall it."""
        self.helm(verb, RELEASE, "--namespace", OPERATOR_NAMESPACE, *options)

    def _give(self, verb: str, *arguments: str, **values: Any) -> None:
        given = json.dumps(self.values | values)
        self.helm(verb, RELEASE, *arguments, "--values", "-", stdin=given)
