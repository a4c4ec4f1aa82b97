"""The kustomize overlays: what kubectl builds of them, and that the API server takes it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_commands import ROOT
from helm_chart import container, operator_pod, select, settings_of

from dataset_operator.settings import parse_settings
from tools.cluster.box import Box, find_existing

OVERLAYS = ROOT / "deploy" / "kustomize"
NAMESPACES = ("lastmile-system", "ads", "search")
Document = dict[str, Any]


def build(box: Box, folder: Path) -> list[Document]:
    return [*yaml.safe_load_all(box.kubectl("kustomize", str(folder)))]


@pytest.fixture(scope="module")
def plain(box: Box) -> list[Document]:
    """Build what the overlays build on."""
    return build(box, ROOT / "deploy" / "operator")


@pytest.fixture(scope="module")
def namespaces(box: Box) -> Iterator[None]:
    """Make the namespaces that the overlays name: a dry run makes none for what comes after."""
    if find_existing() is not None:
        pytest.skip("the existing cluster may have namespaces of these names, which are its own")
    for name in NAMESPACES:
        box.kubectl("create", "namespace", name)
    yield
    box.kubectl("delete", "namespace", *NAMESPACES)


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize(
    "overlay",
    [
        "cluster-wide",
        pytest.param("namespaced", marks=pytest.mark.slow),
        pytest.param("air-gapped", marks=pytest.mark.slow),
    ],
)
def test_an_overlay_is_taken_by_the_api_server_and_has_settings_of_its_own(
    box: Box, overlay: str
) -> None:
    strict = ("--server-side", "--dry-run=server", "--validate=strict", "-o", "name")
    said = box.kubectl("apply", *strict, "-k", str(OVERLAYS / overlay)).split()

    documents = build(box, OVERLAYS / overlay)
    assert len(said) == len(documents)
    settings = settings_of(documents)
    parse_settings(settings)
    [config] = select(documents, "ConfigMap")
    volumes = {volume["name"]: volume for volume in operator_pod(documents)["volumes"]}
    assert volumes["settings"]["configMap"]["name"] == config["metadata"]["name"]
    assert config["metadata"]["name"].startswith("lastmile-settings-"), "by a hash, pods roll"
    used = settings["runtimeImage"], container(documents)["image"]
    assert not any(image.startswith("registry.example.com/lastmile-") for image in used)


def test_the_whole_cluster_is_the_plain_manifest_but_for_image_and_settings(
    box: Box, plain: list[Document]
) -> None:
    documents = build(box, OVERLAYS / "cluster-wide")
    [deployment], [expected] = (select(found, "Deployment") for found in (documents, plain))
    operator_pod(plain)["containers"][0]["image"] = container(documents)["image"]
    operator_pod(plain)["volumes"] = operator_pod(documents)["volumes"]
    assert deployment == expected

    def others(found: list[Document]) -> list[Document]:
        return [d for d in found if d["kind"] not in ("ConfigMap", "Deployment")]

    assert others(documents) == others(plain)


def test_named_namespaces_have_the_operators_rights_and_the_cluster_has_none(
    box: Box, plain: list[Document]
) -> None:
    documents = build(box, OVERLAYS / "namespaced")
    [role] = select(plain, "ClusterRole")
    roles = {
        found["metadata"]["namespace"]: found["rules"]
        for found in select(documents, "Role", "lastmile-operator")
    }
    assert roles == {"ads": role["rules"], "search": role["rules"]}
    assert not select(documents, "ClusterRole") + select(documents, "ClusterRoleBinding")
    for binding in select(documents, "RoleBinding"):
        [account] = binding["subjects"]
        assert (account["name"], account["namespace"]) == ("lastmile-operator", "lastmile-system")
    assert container(documents)["args"][-2:] == ["--namespace=ads", "--namespace=search"]


def test_without_a_way_out_nothing_is_pulled_by_a_tag_nor_reached_elsewhere(box: Box) -> None:
    documents = build(box, OVERLAYS / "air-gapped")
    settings = settings_of(documents)
    for image in (settings["runtimeImage"], container(documents)["image"]):
        assert image.startswith("registry.internal.example/")
        assert "@sha256:" in image
    assert operator_pod(documents)["imagePullSecrets"] == [{"name": "registry"}]
    assert settings["network"]["egress"]
    [policy] = select(documents, "NetworkPolicy")
    [deployment] = select(documents, "Deployment")
    assert policy["spec"]["podSelector"] == deployment["spec"]["selector"]
    assert "Egress" in policy["spec"]["policyTypes"]
