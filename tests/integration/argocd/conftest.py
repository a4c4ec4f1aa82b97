"""One control plane with an Argo CD for the tests of this folder."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

# Tests are no package: this makes `argocd_stage` importable here, and `reconcile_stage`.
sys.path.insert(0, str(Path(__file__).parents[1] / "cluster" / "stages"))
sys.path.insert(0, str(Path(__file__).parent))

from argocd_stage import ArgoCD
from git_repository import Repository

from tools.cluster.control_plane import ControlPlane
from tools.cluster.startup import Settings
from tools.go_tools import ToolError

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def argocd(
    tmp_path_factory: pytest.TempPathFactory, skip_unless_ci: Callable[[str], NoReturn]
) -> Iterator[ArgoCD]:
    """Start a control plane of its own: Argo CD looks at everything that is in it."""
    settings = Settings(crds=tuple(sorted((ROOT / "crds").glob("*.yaml"))))
    try:
        box = ControlPlane.start(tmp_path_factory.mktemp("box"), settings=settings)
    except ToolError as error:
        skip_unless_ci(f"no Kubernetes to test against: {error}")
    try:
        yield ArgoCD.start(box)
    except ToolError as error:
        skip_unless_ci(f"no Argo CD to test against: {error}")
    finally:
        box.stop(keep_logs=True)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Make a git repository of the sample's files."""
    return Repository.start(tmp_path / "git", ROOT / "deploy" / "argocd" / "repository")
