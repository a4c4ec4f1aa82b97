"""Runs helm on the chart, away from the user's own repositories, caches and cluster."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "charts" / "lastmile"
RELEASE = "lastmile"
NAMESPACE = "lastmile-system"
TIMEOUT_SECONDS = 200.0  # longer than any --timeout that is given to it here
Document = dict[str, Any]


class HelmError(AssertionError):
    """Helm refused something; its words are the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Helm:
    """A helm, and the cluster that it talks to.

    Attributes:
        home: an empty folder for what it keeps.
        kubeconfig: None: no cluster at all.
    """

    program: str
    home: Path
    kubeconfig: Path | None = None
    chart: Path = field(default=CHART)

    def environment(self) -> dict[str, str]:
        own = {name: str(self.home / name) for name in ("HOME", "HELM_CACHE_HOME")}
        own |= {name: str(self.home / name) for name in ("HELM_CONFIG_HOME", "HELM_DATA_HOME")}
        nowhere = self.home / "none"
        return {**os.environ, **own, "KUBECONFIG": str(self.kubeconfig or nowhere)}

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Run it and return what it printed. Raises HelmError."""
        done = subprocess.run(
            [self.program, *arguments],
            input=stdin,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise HelmError(done.stderr)
        return done.stdout

    def template(
        self, *options: str, values: Document | None = None, namespace: str = NAMESPACE
    ) -> list[Document]:
        """Render the chart with these values. Raises HelmError."""
        place = ("template", RELEASE, str(self.chart), "--namespace", namespace, "--values", "-")
        text = self(*place, *options, stdin=yaml.safe_dump(values or {}))
        return [*read_documents(text)]


def read_documents(text: str) -> Iterator[Document]:
    return (document for document in yaml.safe_load_all(text) if document)


def select(documents: list[Document], kind: str, name: str = "") -> list[Document]:
    """Return the documents of a kind, and of a name if one is given."""
    return [
        document
        for document in documents
        if document["kind"] == kind and name in ("", document["metadata"]["name"])
    ]


def hooks(documents: list[Document]) -> list[Document]:
    return [d for d in documents if "helm.sh/hook" in d["metadata"].get("annotations", {})]


def operator_pod(documents: list[Document]) -> Document:
    [deployment] = select(documents, "Deployment")
    spec: Document = deployment["spec"]["template"]["spec"]
    return spec


def container(documents: list[Document]) -> Document:
    [found] = operator_pod(documents)["containers"]
    return dict(found)


def settings_of(documents: list[Document]) -> Document:
    [config] = [d for d in select(documents, "ConfigMap") if "settings.yaml" in d["data"]]
    return dict(yaml.safe_load(config["data"]["settings.yaml"]))
