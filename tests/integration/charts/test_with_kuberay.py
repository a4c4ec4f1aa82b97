"""The chart that brings KubeRay along: real helm builds and renders it.

KubeRay's own chart cannot be had here. A stand-in of its name and version takes its place, with
the real CRDs: what is shown is that helm finds, switches and configures both.
"""

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from helm_chart import CHART, Document, Helm, HelmError, select

from tools.cluster.binaries import find_control_plane

TOGETHER = CHART.with_name("lastmile-with-kuberay")
RAY_CRDS = ("rayclusters.ray.io", "rayjobs.ray.io")
GIVEN = {"lastmile": {"settings": {"storageRoot": "s3://bucket/team/"}}}
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: kuberay-operator, namespace: {{ .Release.Namespace }}}
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def repository(chart: Helm, tmp_path: Path) -> Iterator[str]:
    """A helm repository on this machine, with the stand-in."""
    about = yaml.safe_load((TOGETHER / "Chart.yaml").read_text())
    [wanted] = [d for d in about["dependencies"] if d["name"] == "kuberay-operator"]
    source, served = tmp_path / "kuberay-operator", tmp_path / "served"
    (source / "templates").mkdir(parents=True)
    served.mkdir()
    named = {"apiVersion": "v2", "name": wanted["name"], "version": wanted["version"]}
    (source / "Chart.yaml").write_text(yaml.safe_dump(named))
    (source / "templates" / "deployment.yaml").write_text(DEPLOYMENT)
    shutil.copytree(find_control_plane().kuberay_crds, source / "crds")
    chart("package", str(source), "--destination", str(served))
    chart("repo", "index", str(served))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(served)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def together(chart: Helm, repository: str, tmp_path: Path) -> Helm:
    """The chart, built; its neighbour is where its file:// says."""
    folder = tmp_path / "charts"
    shutil.copytree(CHART, folder / CHART.name)
    shutil.copytree(TOGETHER, folder / TOGETHER.name)
    about = folder / TOGETHER.name / "Chart.yaml"
    upstream = "https://ray-project.github.io/kuberay-helm/"
    assert upstream in about.read_text()
    about.write_text(about.read_text().replace(upstream, repository))
    chart("dependency", "build", str(about.parent))
    return replace(chart, chart=about.parent)


def names(documents: list[Document], kind: str) -> set[str]:
    return {document["metadata"]["name"] for document in select(documents, kind)}


def test_both_operators_are_installed(together: Helm) -> None:
    documents = together.template("--include-crds", values=GIVEN)
    assert names(documents, "Deployment") == {"lastmile-operator", "kuberay-operator"}
    crds = names(documents, "CustomResourceDefinition")
    assert {*RAY_CRDS, "datasetexperiments.experiments.lastmile.dev"} <= crds


def test_the_guides_command_is_one_that_helm_takes(
    together: Helm, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (CHART.parents[1] / "docs" / "operating" / "install.md").read_text()
    [command] = re.findall(r"^(helm install .*with-kuberay .*(?:\n  .*)*)", guide, re.MULTILINE)
    monkeypatch.chdir(together.chart.parents[1])
    _, *words = shlex.split(command.replace("\\\n", ""))
    assert "STATUS: pending-install" in together(*words, "--dry-run=client")


def test_kuberay_is_left_out_where_there_is_one(together: Helm) -> None:
    values = GIVEN | {"kuberay-operator": {"enabled": False}}
    documents = together.template("--include-crds", values=values)
    assert names(documents, "Deployment") == {"lastmile-operator"}
    assert not names(documents, "CustomResourceDefinition") & {*RAY_CRDS}


def test_what_lastmile_does_not_know_is_refused_here_too(together: Helm) -> None:
    with pytest.raises(HelmError, match="replicas"):
        together.template(values={"lastmile": {"replicas": 3}})


def test_both_are_of_the_versions_that_are_tested() -> None:
    about = yaml.safe_load((TOGETHER / "Chart.yaml").read_text())
    own = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {key: about[key] for key in ("version", "appVersion", "kubeVersion")} == {
        key: own[key] for key in ("version", "appVersion", "kubeVersion")
    }
    wanted = {d["name"]: d["version"] for d in about["dependencies"]}
    assert wanted["lastmile"] == own["version"]
    modules = (CHART.parents[1] / "tools" / "modules" / "kuberay" / "go.mod").read_text()
    assert f"github.com/ray-project/kuberay/ray-operator v{wanted['kuberay-operator']}\n" in modules
