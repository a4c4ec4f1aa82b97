"""The operator's image, really built; it runs as user 1000 on a read-only file system.

The end-to-end tests build the image of the runtime, which is large, and run it in pods.
"""

import ast
import json
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from tools.buildah import buildah, missing_for_images
from tools.go_tools import ToolError
from tools.images import Image, Recipe, build_recipe, snapshot

# The first build on a machine bootstraps Debian and installs from the index: two minutes.
pytestmark = pytest.mark.timeout(1200)
LABELS = "org.opencontainers.image."


@pytest.fixture(scope="module")
def recipe() -> Iterator[Recipe]:
    """Copy the operator's current files."""
    with snapshot("operator") as copied:
        yield copied


@pytest.fixture(scope="module")
def image(recipe: Recipe, skip_unless_ci: Callable[[str], NoReturn]) -> Image:
    """Build the image of these sources; skip with the reason if this needs root."""
    if reason := missing_for_images():
        skip_unless_ci(f"no image is built: {reason}")
    return build_recipe(recipe)


@pytest.fixture(scope="module")
def container(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Create a container from the archive, as a cluster does, not from the build's leftovers."""
    own_name = f"--name=test-{secrets.token_hex(4)}"  # builds clean up other names
    archive = tmp_path_factory.mktemp("image") / "operator.tar"
    with archive.open("wb") as stream:
        image.write_archive(stream)
    name = buildah("from", "--pull-never", own_name, f"oci-archive:{archive}").strip()
    try:
        yield name
    finally:
        buildah("rm", name)
        buildah("rmi", f"docker.io/library/{image.reference}")  # the name from the archive


def run_in(container: str, *command: str) -> str:
    """Run a command as the image's user and return what it printed."""
    return buildah("run", container, "--", *command).strip()


def test_the_command_runs_as_user_1000(container: str) -> None:
    assert run_in(container, "id", "-u") == "1000"
    assert run_in(container, "lastmile", "--version").startswith("lastmile 0.")


@pytest.mark.parametrize("module", ["torch", "ray", "pyarrow"])
def test_the_image_lacks_heavy_libraries(container: str, module: str) -> None:
    run_in(container, "python", "-c", "import kopf, kubernetes, dataset_operator")
    with pytest.raises(ToolError, match=f"No module named '{module}'"):
        run_in(container, "python", "-c", f"import {module}")


def test_a_container_runs_the_operator_by_default(container: str) -> None:
    config = json.loads(buildah("inspect", container))["OCIv1"]["config"]

    assert config["Entrypoint"] == ["lastmile", "operator"]
    assert "usage: lastmile operator" in run_in(container, *config["Entrypoint"], "--help").lower()


def test_the_image_has_labels(container: str) -> None:
    labels = json.loads(buildah("inspect", container))["OCIv1"]["config"]["Labels"]
    version = run_in(container, "lastmile", "--version").removeprefix("lastmile ")

    assert labels[f"{LABELS}title"] == "lastmile-operator"
    assert labels[f"{LABELS}version"] == version
    assert labels[f"{LABELS}licenses"] == "Apache-2.0"
    assert {f"{LABELS}revision", f"{LABELS}source", f"{LABELS}description"} <= labels.keys()


def test_the_image_has_a_complete_sbom(container: str) -> None:
    bill = json.loads(run_in(container, "cat", "/opt/lastmile/sbom.spdx.json"))
    packages = {package["name"]: package["versionInfo"] for package in bill["packages"]}
    listed = (
        "import importlib.metadata as m; print([(d.name, d.version) for d in m.distributions()])"
    )
    installed = ast.literal_eval(run_in(container, "python", "-c", listed))

    assert packages["lastmile-operator"] == packages["lastmile-experiments"]
    assert len(installed) > 20
    for name, version in installed:
        assert packages[re.sub(r"[-_.]+", "-", name).lower()] == version
    debian = run_in(container, "dpkg-query", "--show", "--showformat", "${Package} ${Version}\n")
    assert dict(line.split(" ") for line in debian.splitlines()).items() <= packages.items()
    assert run_in(container, "sh", "-c", "ls /tmp") == ""


def test_the_image_holds_nothing_of_the_build_machine(container: str) -> None:
    found = run_in(container, "sh", "-c", "cat /etc/pip.conf /run/secrets/* 2>/dev/null || true")
    history = json.dumps(json.loads(buildah("inspect", container))["OCIv1"]["history"])

    assert found == ""
    assert "operator.lock" in history
    assert "://" not in history


def test_the_operator_runs_on_a_read_only_file_system(container: str) -> None:
    root = buildah("mount", container).strip()
    script = f"""
      mount --bind {root} {root}
      mount -o remount,bind,ro {root}
      if touch {root}/tmp/written; then exit 9; fi
      exec chroot --userspec=1000:1000 {root} /usr/bin/env -i HOME=/tmp PATH=/opt/lastmile/bin \
        lastmile operator --help
    """
    try:
        command = ["unshare", "--mount", "sh", "-euc", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        buildah("umount", container)

    assert done.returncode == 0, done.stderr
    assert "Read-only file system" in done.stderr  # from `touch`
    assert "Usage: lastmile operator" in done.stdout


def test_the_build_is_reproducible(recipe: Recipe, image: Image) -> None:
    digest = image.digest

    again = build_recipe(recipe)

    assert again == image
    assert again.digest == digest
