"""Real helm renders every branch of the chart's templates, and refuses wrong values."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_commands import ROOT
from facts import assert_told
from helm_chart import (
    CHART,
    NAMESPACE,
    Document,
    Helm,
    HelmError,
    container,
    hooks,
    operator_pod,
    select,
    settings_of,
)

from dataset_operator.settings import parse_settings

EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
OPERATOR_FILE = ROOT / "deploy" / "operator" / "operator.yaml"
KEEP = {"helm.sh/resource-policy": "keep"}
DIGEST = "sha256:" + "1" * 64
ELECTION_OFF = {"settings": {"leaderElection": False}}
# APIs that the cluster serves, which `helm template` cannot find out.
ANY_CLUSTER = "--api-versions=apiregistration.k8s.io/v1"
WITH_KUBERAY = "--api-versions=ray.io/v1/RayCluster"


def rules_of(documents: list[Document], kind: str, name: str) -> dict[str, list[Document]]:
    """Return the rules of roles with a name, by namespace."""
    return {
        role["metadata"].get("namespace", ""): role["rules"]
        for role in select(documents, kind, name)
    }


def test_lint_finds_nothing(chart: Helm) -> None:
    assert "0 chart(s) failed" in chart("lint", "--strict", str(CHART))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_renders_settings_that_the_operator_accepts(chart: Helm, example: Path) -> None:
    documents = chart.template("--values", str(example))
    parse_settings(settings_of(documents))
    assert "0 chart(s) failed" in chart("lint", "--strict", str(CHART), "-f", str(example))


GUIDES = (ROOT / "docs" / "operating" / "install.md", CHART / "README.md")
COMMANDS = [
    command
    for guide in GUIDES
    for command in re.findall(r"^helm install .*(?:\n  .*)*", guide.read_text(), re.MULTILINE)
    if "with-kuberay" not in command  # needs a build first: test_with_kuberay
]


@pytest.mark.parametrize("command", COMMANDS)
def test_helm_accepts_the_commands_of_the_guides(
    chart: Helm, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, *words = shlex.split(command.replace("\\\n", ""))
    assert "STATUS: pending-install" in chart(*words, "--dry-run=client")


def test_the_crd_equals_the_committed_one_and_is_kept(chart: Helm) -> None:
    [crd] = select(chart.template(), "CustomResourceDefinition")
    committed = yaml.safe_load((ROOT / "crds" / "datasetexperiments.yaml").read_text())
    assert crd["spec"] == committed["spec"]
    assert crd["metadata"]["name"] == committed["metadata"]["name"]
    assert crd["metadata"]["annotations"] == KEEP


def test_the_crd_can_be_omitted_or_deleted_with_the_release(chart: Helm) -> None:
    [crd] = select(chart.template(values={"crds": {"keep": False}}), "CustomResourceDefinition")
    assert "annotations" not in crd["metadata"]
    none = chart.template(values={"crds": {"install": False}})
    assert not select(none, "CustomResourceDefinition")


def test_the_rights_equal_those_of_the_plain_manifest(chart: Helm) -> None:
    plain = [*yaml.safe_load_all(OPERATOR_FILE.read_text())]
    [role] = select(plain, "ClusterRole")
    documents = chart.template()
    given = rules_of(documents, "ClusterRole", "lastmile-operator")
    assert given == {"": role["rules"]}
    rules = {role["metadata"]["name"]: role["rules"] for role in select(plain, "Role")}
    assert rules.keys() == {"lastmile-operator-lease", "lastmile-operator-seal"}
    assert rules == {r["metadata"]["name"]: r["rules"] for r in select(documents, "Role")}
    [binding] = select(documents, "ClusterRoleBinding", "lastmile-operator")
    [account] = binding["subjects"]
    assert account == {
        "kind": "ServiceAccount",
        "name": "lastmile-operator",
        "namespace": NAMESPACE,
    }


def test_watched_namespaces_get_roles_instead_of_cluster_roles(chart: Helm) -> None:
    cluster = rules_of(chart.template(), "ClusterRole", "lastmile-operator")[""]
    values = {"watchNamespaces": ["a", "b"], "rbac": {"aggregateRoles": False}}
    documents = chart.template(values=values)
    assert not select(documents, "ClusterRole")
    assert not select(documents, "ClusterRoleBinding")
    rules = rules_of(documents, "Role", "lastmile-operator")
    assert rules["a"] == rules["b"] == cluster
    assert [d["metadata"]["namespace"] for d in select(documents, "RoleBinding")[:2]] == ["a", "b"]
    assert container(documents)["args"] == [
        "--config=/etc/lastmile/settings.yaml",
        "--namespace=a",
        "--namespace=b",
    ]


def test_the_replicas_share_one_lease(chart: Helm) -> None:
    [rules] = rules_of(chart.template(), "Role", "lastmile-operator-lease").values()
    create, rest = rules
    assert create["verbs"] == ["create"]
    assert (rest["resourceNames"], rest["verbs"]) == (
        ["lastmile-operator"],
        ["get", "update"],
    )
    alone = {"replicaCount": 1, **ELECTION_OFF}
    documents = chart.template("--skip-schema-validation", values=alone)
    [seal] = select(documents, "Role")
    assert seal["metadata"]["name"] == "lastmile-operator-seal"
    assert select(documents, "Deployment")[0]["spec"]["strategy"] == {"type": "Recreate"}


def test_each_release_has_a_lease_of_its_own(chart: Helm) -> None:
    documents = chart.template(values={"fullnameOverride": "vision"})
    [(_, rest)] = rules_of(documents, "Role", "vision-operator-lease").values()
    assert rest["resourceNames"] == ["vision-operator"]
    assert settings_of(documents)["lease"] == {"name": "vision-operator"}

    given = {"settings": {"lease": {"name": "mine", "namespace": "leases"}}}
    documents = chart.template("--skip-schema-validation", values=given)
    [(namespace, (_, rest))] = rules_of(documents, "Role", "lastmile-operator-lease").items()
    assert (namespace, rest["resourceNames"]) == ("leases", ["mine"])
    assert settings_of(documents)["lease"] == given["settings"]["lease"]


@pytest.mark.parametrize("election", [{}, ELECTION_OFF], ids=["elected", "alone"])
def test_each_release_has_a_key_of_its_own(chart: Helm, election: Document) -> None:
    values = {"fullnameOverride": "vision", "watchNamespaces": ["a"], "replicaCount": 1, **election}
    documents = chart.template("--skip-schema-validation", values=values)
    [(namespace, (create, get))] = rules_of(documents, "Role", "vision-operator-seal").items()
    assert (namespace, create["verbs"], get["verbs"]) == (NAMESPACE, ["create"], ["get"])
    settings = parse_settings(settings_of(documents))
    assert get["resourceNames"] == [settings.lease.seal_secret]
    assert "resourceNames" not in create


def test_users_roles_add_to_the_clusters_own(chart: Helm) -> None:
    documents = chart.template()
    [view] = select(documents, "ClusterRole", "lastmile-experiments-view")
    [edit] = select(documents, "ClusterRole", "lastmile-experiments-edit")

    def adds_to(role: Document) -> set[str]:
        label = "rbac.authorization.k8s.io/aggregate-to-"
        return {n.removeprefix(label) for n in role["metadata"]["labels"] if n.startswith(label)}

    assert adds_to(view) == {"view", "edit", "admin"}
    assert adds_to(edit) == {"edit", "admin"}
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    # Only the operator may write the status.
    assert all("datasetexperiments/status" not in rule["resources"] for rule in edit["rules"])
    # The same holds for RayClusters: `lastmile scale` annotates the experiment instead.
    assert {group for rule in edit["rules"] for group in rule["apiGroups"]} == {
        "experiments.lastmile.dev"
    }


def test_users_can_bring_their_own_rights_and_account(chart: Helm) -> None:
    values = {
        "rbac": {"create": False, "aggregateRoles": False},
        "serviceAccount": {"create": False, "name": "mine"},
        "uninstall": {"releaseFinalizers": False},
    }
    documents = chart.template(values=values)
    kinds = {document["kind"] for document in documents}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    assert "ServiceAccount" not in kinds
    assert operator_pod(documents)["serviceAccountName"] == "mine"
    without = {"serviceAccount": {"create": False}, "rbac": {"create": False}}
    assert operator_pod(chart.template(values=without))["serviceAccountName"] == "default"


def test_the_charts_account_has_the_given_name_and_annotations(chart: Helm) -> None:
    values = {"serviceAccount": {"name": "mine", "annotations": {"iam": "role"}}}
    documents = chart.template(values=values)
    [account] = select(documents, "ServiceAccount", "mine")
    assert account["metadata"]["annotations"] == {"iam": "role"}
    [binding] = select(documents, "ClusterRoleBinding", "lastmile-operator")
    assert binding["subjects"][0]["name"] == "mine"


def test_the_pod_is_restricted(chart: Helm) -> None:
    documents = chart.template()
    pod = operator_pod(documents)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    operator = container(documents)
    assert operator["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert operator["resources"]["limits"] == {"memory": "512Mi"}
    [job] = select(documents, "Job")
    job_pod = job["spec"]["template"]["spec"]
    assert job_pod["securityContext"] == pod["securityContext"]
    assert job_pod["containers"][0]["securityContext"] == operator["securityContext"]


def test_openshift_can_choose_the_ids(chart: Helm) -> None:
    values = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None}}
    context = operator_pod(chart.template(values=values))["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_two_replicas_are_spread_and_not_evicted_at_once(chart: Helm) -> None:
    documents = chart.template()
    [deployment] = select(documents, "Deployment")
    assert deployment["spec"]["replicas"] == 2
    labels = deployment["spec"]["selector"]["matchLabels"]
    [budget] = select(documents, "PodDisruptionBudget")
    assert budget["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    [spread] = operator_pod(documents)["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels
    # The hook's pod is not one of them.
    [job] = select(documents, "Job")
    assert not labels.items() <= job["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    "values",
    [{"replicaCount": 1}, {"podDisruptionBudget": {"enabled": False}}],
    ids=["one replica has no budget", "the budget is turned off"],
)
def test_no_budget(chart: Helm, values: Document) -> None:
    assert not select(chart.template(values=values), "PodDisruptionBudget")


def test_the_pod_has_all_given_fields(chart: Helm) -> None:
    toleration = {"key": "infra", "operator": "Exists"}
    affinity = {"nodeAffinity": {}}
    values = {
        "nodeSelector": {"pool": "infra"},
        "tolerations": [toleration],
        "affinity": affinity,
        "priorityClassName": "system-cluster-critical",
        "podLabels": {"team": "ml", "app.kubernetes.io/name": "other"},
        "podAnnotations": {"note": "x"},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "extraVolumes": [{"name": "token", "secret": {"secretName": "token"}}],
        "extraVolumeMounts": [{"name": "token", "mountPath": "/token"}],
        "topologySpread": {"topologyKey": ""},
        "terminationGracePeriodSeconds": 60,
        "verbose": True,
        "resources": {"limits": {"memory": "1Gi"}},
    }
    documents = chart.template(values=values)
    [deployment] = select(documents, "Deployment")
    metadata = deployment["spec"]["template"]["metadata"]
    assert metadata["labels"]["team"] == "ml"
    assert metadata["labels"]["app.kubernetes.io/name"] == "lastmile-operator"  # as selected
    assert metadata["annotations"]["note"] == "x"
    pod = operator_pod(documents)
    assert pod["nodeSelector"] == {"pool": "infra"}
    assert pod["tolerations"] == [toleration]
    assert pod["affinity"] == affinity
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert pod["terminationGracePeriodSeconds"] == 60
    assert "topologySpreadConstraints" not in pod
    assert pod["volumes"][-1] == {"name": "token", "secret": {"secretName": "token"}}
    operator = container(documents)
    assert operator["env"] == [{"name": "HTTPS_PROXY", "value": "http://proxy"}]
    assert operator["volumeMounts"][-1] == {"name": "token", "mountPath": "/token"}
    assert operator["args"][-1] == "--verbose"
    assert operator["resources"]["limits"] == {"memory": "1Gi"}


def test_emptied_values_are_omitted(chart: Helm) -> None:
    values: dict[str, Any] = {
        "resources": {"requests": None, "limits": None},
        "podSecurityContext": None,
        "containerSecurityContext": None,
    }
    documents = chart.template(values=values)
    assert "resources" not in container(documents)
    assert "securityContext" not in container(documents)
    assert "securityContext" not in operator_pod(documents)


def test_images_come_from_one_registry_by_tag_or_digest(chart: Helm) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    plain = chart.template()
    assert container(plain)["image"] == f"lastmile-operator:{version}"
    assert settings_of(plain)["runtimeImage"] == f"lastmile-runtime:{version}"
    image = {
        "registry": "registry.example/team/",
        "pullPolicy": "Always",
        "pullSecrets": ["key"],
        "operator": {"tag": "9", "digest": DIGEST},
        "runtime": {"tag": "9"},
    }
    documents = chart.template(values={"image": image})
    assert container(documents)["image"] == f"registry.example/team/lastmile-operator@{DIGEST}"
    assert container(documents)["imagePullPolicy"] == "Always"
    assert settings_of(documents)["runtimeImage"] == "registry.example/team/lastmile-runtime:9"
    [job] = select(documents, "Job")
    for pod in (operator_pod(documents), job["spec"]["template"]["spec"]):
        assert pod["imagePullSecrets"] == [{"name": "key"}]
        assert pod["containers"][0]["image"].endswith(DIGEST)


def test_settings_reach_the_operator_unchanged(chart: Helm) -> None:
    given = {
        "runtimeImage": "mine:1",
        "gpuResource": None,  # helm would drop a null that overrides a value of the chart
        "terminationGraceSeconds": 1_234_567_890,
        "prices": {"gpuHour": 2.5, "dataWorkerHour": 1},
        "serviceAccounts": {"*": ["trainer"]},
        "network": {"prometheusNamespace": "monitoring", "egress": []},
    }
    settings = settings_of(chart.template(values={"settings": given}))
    network = settings.pop("network")
    assert settings == {k: v for k, v in given.items() if k != "network"}
    parsed = parse_settings({**settings, "network": network})
    assert parsed.gpu_resource is None
    assert parsed.network.egress == ()


def test_experiments_admit_the_operator_of_this_release(chart: Helm) -> None:
    documents = chart.template()
    network = settings_of(documents)["network"]
    [deployment] = select(documents, "Deployment")
    assert network["operatorNamespace"] == NAMESPACE
    assert network["operatorLabels"] == deployment["spec"]["selector"]["matchLabels"]
    own = {"operatorNamespace": "ops", "operatorLabels": {"app": "x"}}
    values = {"settings": {"network": own}}
    assert settings_of(chart.template(values=values))["network"] == own


def test_only_changed_settings_replace_the_pod(chart: Helm) -> None:
    def pod_of(values: Document) -> Document:
        [deployment] = select(chart.template(values=values), "Deployment")
        return dict(deployment["spec"]["template"])

    plain = pod_of({})
    assert plain == pod_of({"replicaCount": 3, "metrics": {"dashboards": {"enabled": True}}})
    assert plain != pod_of({"settings": {"storageRoot": "s3://bucket/"}})


def test_common_labels_are_everywhere_and_select_nothing(chart: Helm) -> None:
    documents = chart.template(values={"commonLabels": {"cost-center": "42"}})
    assert all(d["metadata"]["labels"]["cost-center"] == "42" for d in documents)
    [deployment] = select(documents, "Deployment")
    assert deployment["spec"]["template"]["metadata"]["labels"]["cost-center"] == "42"
    assert "cost-center" not in deployment["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "lastmile-operator"),
        ({"nameOverride": "lm"}, "lastmile-lm-operator"),
        ({"fullnameOverride": "lm"}, "lm-operator"),
        ({"fullnameOverride": "x" * 60}, "x" * 40 + "-operator"),  # names end at 63
    ],
    ids=["the release's", "with the chart's in another word", "one's own", "a long one"],
)
def test_names(chart: Helm, values: Document, name: str) -> None:
    documents = chart.template(values=values)
    assert select(documents, "Deployment")[0]["metadata"]["name"] == name
    assert all(len(d["metadata"]["name"]) <= 63 for d in documents)
    assert operator_pod(documents)["volumes"][0]["configMap"]["name"] == name


def test_the_hook_releases_finalizers_after_the_operators_rights_are_deleted(chart: Helm) -> None:
    after = hooks(chart.template())
    assert [d["kind"] for d in after] == [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Job",
    ]
    for document in after:
        annotations = document["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "post-delete"
        assert annotations["helm.sh/hook-weight"] == ("1" if document["kind"] == "Job" else "0")
    [role] = select(after, "ClusterRole")
    [rule] = role["rules"]
    assert rule["verbs"] == ["list", "patch"]
    [operator] = select(after, "Job")[0]["spec"]["template"]["spec"]["containers"]
    assert operator["args"] == ["release-finalizers", "--all-namespaces"]

    named = hooks(chart.template(values={"watchNamespaces": ["a", "b"]}))
    assert [d["kind"] for d in named].count("Role") == 2
    [operator] = select(named, "Job")[0]["spec"]["template"]["spec"]["containers"]
    assert operator["args"] == ["release-finalizers", "--namespace=a", "--namespace=b"]
    assert not hooks(chart.template(values={"uninstall": {"releaseFinalizers": False}}))


def test_notes_say_the_next_command(chart: Helm) -> None:
    def notes(**values: Any) -> str:
        options = (
            "install",
            "lastmile",
            str(CHART),
            "-n",
            NAMESPACE,
            "--dry-run=client",
            "-f",
            "-",
        )
        return chart(*options, stdin=yaml.safe_dump(values)).split("NOTES:")[1]

    plain = notes()
    assert "rollout status deployment/lastmile-operator" in plain
    assert "all namespaces" in plain
    assert "settings.storageRoot" in plain
    other = notes(
        watchNamespaces=["a", "b"],
        settings={"storageRoot": "s3://b/"},
        uninstall={"releaseFinalizers": False},
    )
    assert "a, b" in other
    assert "-n a -f deploy/samples/quickstart.yaml" in other
    assert "settings.storageRoot" not in other
    assert "release-finalizers --all-namespaces" in other


REFUSED: dict[str, tuple[Document, str]] = {
    "a typo": ({"replicaCuont": 3}, "'replicaCuont'"),
    "a typo in a map": (
        {"metrics": {"serviceMonitor": {"enable": True}}},
        "'/metrics/serviceMonitor' … 'enable'",
    ),
    "a typo in a setting": (
        {"settings": {"prices": {"gpuHuor": 1, "gpuHour": 1, "dataWorkerHour": 1}}},
        "'/settings/prices' … 'gpuHuor'",
    ),
    "a setting beyond its bound": (
        {"settings": {"sharedMemoryPercent": 96}},
        "'/settings/sharedMemoryPercent' … 96 … 95",
    ),
    "a namespace twice": ({"watchNamespaces": ["a", "a"]}, "at '/watchNamespaces'"),
    "a pattern of namespaces": ({"watchNamespaces": ["team-*"]}, "at '/watchNamespaces/0'"),
    "a digest without its kind": (
        {"image": {"operator": {"digest": "1" * 64}}},
        "at '/image/operator/digest'",
    ),
    "pods monitored, Prometheus kept out": (
        {"metrics": {"podMonitor": {"enabled": True}}},
        "metrics.podMonitor.enabled: … settings.network.prometheusNamespace",
    ),
    "a monitor without a service": (
        {"metrics": {"serviceMonitor": {"enabled": True}, "service": {"enabled": False}}},
        "metrics.serviceMonitor.enabled: … metrics.service.enabled",
    ),
    "rights for everybody's account": (
        {"serviceAccount": {"create": False}},
        "serviceAccount.name: … serviceAccount.create",
    ),
}


@pytest.mark.parametrize(("values", "words"), REFUSED.values(), ids=REFUSED)
def test_wrong_values_are_refused_with_their_path(
    chart: Helm, values: Document, words: str
) -> None:
    with pytest.raises(HelmError) as refused:
        chart.template(values=values)
    assert_told(str(refused.value), f"… {words}")


def test_two_operators_without_an_election_are_refused(chart: Helm) -> None:
    with pytest.raises(HelmError, match=r"replicaCount: .*settings\.leaderElection"):
        chart.template("--skip-schema-validation", values=ELECTION_OFF)


def test_a_cluster_without_kuberay_is_refused(chart: Helm) -> None:
    with pytest.raises(HelmError, match=r"checks\.kuberay: .*rayclusters\.ray\.io"):
        chart.template(ANY_CLUSTER)
    assert chart.template(ANY_CLUSTER, WITH_KUBERAY)
    assert chart.template(ANY_CLUSTER, values={"checks": {"kuberay": False}})
