"""The operator's image, built for real, and what runs in it: as user 1000, with no place to write.

The runtime's, which is large, is built by the end-to-end tests that run it in pods.
"""

import ast
import json
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from tools.go_tools import ToolError
from tools.images import Image, missing_for_images
from tools.images.build import build_recipe
from tools.images.buildah import buildah
from tools.images.inputs import Recipe, snapshot

# The first build on a machine bootstraps Debian and installs from the index: two minutes.
pytestmark = pytest.mark.timeout(1200)
LABELS = "org.opencontainers.image."


@pytest.fixture(scope="module")
def recipe() -> Iterator[Recipe]:
    """The operator's files, as they are now."""
    with snapshot("operator") as copied:
        yield copied


@pytest.fixture(scope="module")
def image(recipe: Recipe, skip_unless_ci: Callable[[str], NoReturn]) -> Image:
    """Build the image of these sources; whoever is not root is told what to do instead."""
    if reason := missing_for_images():
        skip_unless_ci(f"no image is built: {reason}")
    return build_recipe(recipe)


@pytest.fixture(scope="module")
def container(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A container made from the archive: what a cluster gets, not what the build left behind."""
    own_name = f"--name=test-{secrets.token_hex(4)}"  # not one that a build cleans up
    archive = tmp_path_factory.mktemp("image") / "operator.tar"
    with archive.open("wb") as stream:
        image.write_archive(stream)
    name = buildah("from", "--pull-never", own_name, f"oci-archive:{archive}").strip()
    try:
        yield name
    finally:
        buildah("rm", name)
        buildah("rmi", f"docker.io/library/{image.reference}")  # the name that the archive gave it


def run_in(container: str, *command: str) -> str:
    """Run a command as the image's user and return what it printed."""
    return buildah("run", container, "--", *command).strip()


def test_the_command_runs_as_user_1000(container: str) -> None:
    assert run_in(container, "id", "-u") == "1000"
    assert run_in(container, "lastmile", "--version").startswith("lastmile 0.")


@pytest.mark.parametrize("module", ["torch", "ray", "pyarrow"])
def test_what_the_operator_does_not_need_is_not_there(container: str, module: str) -> None:
    run_in(container, "python", "-c", "import kopf, kubernetes, dataset_operator")
    with pytest.raises(ToolError, match=f"No module named '{module}'"):
        run_in(container, "python", "-c", f"import {module}")


def test_a_container_runs_the_operator_unless_told_otherwise(container: str) -> None:
    config = json.loads(buildah("inspect", container))["OCIv1"]["config"]

    assert config["Entrypoint"] == ["lastmile", "operator"]
    assert "usage: lastmile operator" in run_in(container, *config["Entrypoint"], "--help").lower()


def test_the_image_says_what_it_is(container: str) -> None:
    labels = json.loads(buildah("inspect", container))["OCIv1"]["config"]["Labels"]
    version = run_in(container, "lastmile", "--version").removeprefix("lastmile ")

    assert labels[f"{LABELS}title"] == "lastmile-operator"
    assert labels[f"{LABELS}version"] == version
    assert labels[f"{LABELS}licenses"] == "Apache-2.0"
    assert {f"{LABELS}revision", f"{LABELS}source", f"{LABELS}description"} <= labels.keys()


def test_the_image_carries_a_bill_of_what_is_in_it(container: str) -> None:
    bill = json.loads(run_in(container, "cat", "/opt/lastmile/sbom.spdx.json"))
    packages = {package["name"]: package["versionInfo"] for package in bill["packages"]}
    listed = (
        "import importlib.metadata as m; print([(d.name, d.version) for d in m.distributions()])"
    )
    installed = ast.literal_eval(run_in(container, "python", "-c", listed))

    assert packages["lastmile-operator"] == packages["lastmile"]
    assert len(installed) > 20
    for name, version in installed:
        assert packages[re.sub(r"[-_.]+", "-", name).lower()] == version
    debian = run_in(container, "dpkg-query", "--show", "--showformat", "${Package} ${Version}\n")
    assert dict(line.split(" ") for line in debian.splitlines()).items() <= packages.items()
    assert run_in(container, "sh", "-c", "ls /tmp") == ""


def test_nothing_of_the_machine_that_built_it_is_left_in_it(container: str) -> None:
    found = run_in(container, "sh", "-c", "cat /etc/pip.conf /run/secrets/* 2>/dev/null || true")
    history = json.dumps(json.loads(buildah("inspect", container))["OCIv1"]["history"])

    assert found == ""
    assert "requirements-operator.lock" in history
    assert "://" not in history


def test_it_works_on_a_read_only_root_filesystem(container: str) -> None:
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
    assert "Read-only file system" in done.stderr  # what `touch` said
    assert "Usage: lastmile operator" in done.stdout


def test_a_second_build_of_the_same_sources_is_the_same_image(recipe: Recipe, image: Image) -> None:
    digest = image.digest

    again = build_recipe(recipe)

    assert again == image
    assert again.digest == digest
