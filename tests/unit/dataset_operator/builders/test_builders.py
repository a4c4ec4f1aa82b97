"""The built objects of an experiment: fields that users may change, locked fields, security."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dataset_operator.api import (
    CLUSTER_HASH_ANNOTATION,
    DATA_WORKERS,
    HEAD,
    TRAINERS,
    TRAINERS_ANNOTATION,
    Role,
)
from dataset_operator.builders.children import (
    build_config_map,
    build_disruption_budgets,
    build_network_policy,
    build_service_account,
    build_token_secret,
)
from dataset_operator.builders.frozen import hash_cluster_side
from dataset_operator.builders.history_writers import build_history_policy
from dataset_operator.builders.pod_templates import ClusterInput, build_pod_template
from dataset_operator.builders.raycluster import build_ray_cluster, name_templates
from dataset_operator.names import MAX_RAY_CLUSTER_NAME_CHARS, Owner
from dataset_operator.settings import NetworkSettings, parse_settings
from pipeline_runtime.config import API_VERSION, KIND, parse_experiment

OWNER = Owner(name="clicks", namespace="team", uid="0f3c6c1e-1111-2222-3333-444455556666")
ROLES: tuple[Role, ...] = (HEAD, TRAINERS, DATA_WORKERS)


def cluster(settings: dict[str, Any] | None = None, **spec: Any) -> ClusterInput:
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": OWNER.name},
        "spec": {"dataset": {"parquet": {"uri": "t/"}}, **spec},
    }
    return ClusterInput(
        owner=OWNER,
        spec=parse_experiment(document).spec,
        settings=parse_settings({"runtimeImage": "runtime:1", **(settings or {})}),
    )


def ray_container(pod: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = pod["spec"]["containers"][0]
    assert container["name"] == "ray"
    return container


def values(container: dict[str, Any]) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in container["env"]}


@pytest.mark.parametrize("role", ROLES)
def test_every_pod_passes_the_restricted_security_level(role: Role) -> None:
    pod = build_pod_template(cluster(), role)
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["spec"]["automountServiceAccountToken"] is False
    for container in pod["spec"]["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("role", ROLES)
def test_terminating_pods_stop_ray_within_the_grace_period(role: Role) -> None:
    pod = build_pod_template(cluster({"terminationGraceSeconds": 77}), role)
    stop = ray_container(pod)["lifecycle"]["preStop"]["exec"]["command"]
    assert stop[:3] == ["ray", "stop", "--grace-period"]
    assert int(stop[3]) < pod["spec"]["terminationGracePeriodSeconds"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 77


@pytest.mark.parametrize(
    ("role", "ports"),
    [
        (HEAD, {"gcs", "dashboard", "client", "lastmile", "metrics"}),
        (TRAINERS, {"metrics"}),
        (DATA_WORKERS, {"metrics"}),
    ],
)
def test_pods_declare_only_ports_that_are_served(role: Role, ports: set[str]) -> None:
    declared = ray_container(build_pod_template(cluster(), role))["ports"]
    assert {port["name"] for port in declared} == ports


def test_locked_fields_override_the_template_which_overrides_defaults() -> None:
    template = {
        "metadata": {"labels": {"team": "ads", "app.kubernetes.io/instance": "other"}},
        "spec": {
            "nodeSelector": {"pool": "spot"},
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            "containers": [
                {"name": "ray", "imagePullPolicy": "Always", "env": [{"name": "A", "value": "1"}]},
                {"name": "sidecar", "image": "s"},
            ],
        },
    }
    pod = build_pod_template(cluster(dataWorkers={"template": template}), DATA_WORKERS)
    assert pod["metadata"]["labels"]["team"] == "ads"
    assert pod["metadata"]["labels"]["app.kubernetes.io/instance"] == "clicks"
    assert pod["spec"]["nodeSelector"] == {"pool": "spot"}
    assert pod["spec"]["terminationGracePeriodSeconds"] == 5
    assert [container["name"] for container in pod["spec"]["containers"]] == ["ray", "sidecar"]
    ray = ray_container(pod)
    assert ray["imagePullPolicy"] == "Always"
    assert values(ray) == {
        "A": "1",
        "LASTMILE_ROLE": "data-workers",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def test_the_spec_sets_image_environment_and_secrets() -> None:
    given = cluster(
        {"storageSecret": "default-keys"},
        image="mine:2",
        env=[{"name": "LEVEL", "value": "debug"}],
        envFrom=[{"configMapRef": {"name": "common"}}],
        imagePullSecrets=[{"name": "registry"}],
        storage={"secretRef": {"name": "bucket-keys"}},
    )
    pod = build_pod_template(given, HEAD)
    ray = ray_container(pod)
    assert ray["image"] == "mine:2"
    assert values(ray)["LEVEL"] == "debug"
    assert ray["envFrom"] == [
        {"secretRef": {"name": "bucket-keys"}},
        {"configMapRef": {"name": "common"}},
    ]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_the_secrets_of_used_catalogs_reach_the_pods() -> None:
    catalogs = [
        {"name": "my-lake", "secretRef": {"name": "lake-keys"}},
        {"name": "unused", "secretRef": {"name": "other-keys"}},
        {"name": "open"},
    ]
    join = {"iceberg": {"catalog": "open", "table": "db.s"}, "keys": ["a"]}
    spec = {
        "catalogs": catalogs,
        "dataset": {"iceberg": {"catalog": "my-lake", "table": "db.t"}},
        "pipeline": [{"join": join}],
    }
    ray = ray_container(build_pod_template(cluster(**spec), HEAD))
    assert ray["envFrom"] == [
        {"prefix": "PYICEBERG_CATALOG__MY_LAKE__", "secretRef": {"name": "lake-keys"}}
    ]


def test_the_operators_storage_secret_is_the_default() -> None:
    pod = build_pod_template(cluster({"storageSecret": "default-keys"}), TRAINERS)
    assert ray_container(pod)["envFrom"] == [{"secretRef": {"name": "default-keys"}}]


GPUS: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "nvidia by default": ({}, 2, "nvidia.com/gpu"),
    "another vendor": ({"gpuResource": "amd.com/gpu"}, 2, "amd.com/gpu"),
    "a MIG profile": ({"gpuResource": "nvidia.com/mig-1g.5gb"}, 1, "nvidia.com/mig-1g.5gb"),
    "no device plugin": ({"gpuResource": None}, 1, None),
    "training on CPUs": ({}, 0, None),
}


@pytest.mark.parametrize(("settings", "number", "resource"), GPUS.values(), ids=GPUS)
def test_only_trainers_hold_gpus(
    settings: dict[str, Any], number: int, resource: str | None
) -> None:
    given = cluster(settings, trainers={"gpusPerReplica": number})
    limits = {role: ray_container(build_pod_template(given, role))["resources"] for role in ROLES}
    counted = {name for name in limits[TRAINERS]["limits"] if "/" in name}
    assert counted == ({resource} if resource else set())
    if resource:
        assert limits[TRAINERS]["limits"][resource] == str(number)
        assert limits[TRAINERS]["requests"][resource] == str(number)
    assert not any("/" in name for role in (HEAD, DATA_WORKERS) for name in limits[role]["limits"])


def test_a_resource_in_the_spec_replaces_requests_and_limits() -> None:
    pod = build_pod_template(
        cluster(dataWorkers={"resources": {"requests": {"memory": "64Gi"}}}), DATA_WORKERS
    )
    assert ray_container(pod)["resources"] == {
        "requests": {"cpu": "4", "memory": "64Gi"},
        "limits": {"cpu": "4"},
    }
    assert pod["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] == str(64 * 2**30 * 40 // 100)


def test_only_data_workers_offer_cpus_for_data_work() -> None:
    given = cluster(trainers={"replicas": 2, "gpusPerReplica": 4})
    document = build_ray_cluster(replace(given, replicas={DATA_WORKERS: 7}))
    assert document["metadata"]["name"] == "clicks-0f3c6"
    assert document["spec"]["authOptions"] == {
        "mode": "token",
        "secretName": "clicks-0f3c6-token",
    }
    assert document["spec"]["enableInTreeAutoscaling"] is False
    assert document["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    trainers, workers = document["spec"]["workerGroupSpecs"]
    assert (trainers["minReplicas"], trainers["replicas"], trainers["maxReplicas"]) == (2, 2, 2)
    assert trainers["rayStartParams"]["num-cpus"] == "4"
    assert (workers["minReplicas"], workers["replicas"], workers["maxReplicas"]) == (1, 7, 50)
    assert workers["labels"] == {"ray-subcluster": "data"}
    assert "num-cpus" not in workers["rayStartParams"]


@pytest.mark.parametrize(("wanted", "replicas"), [(0, 2), (2, 2), (5, 5), (6, 5)])
def test_data_workers_stay_within_minimum_and_maximum(wanted: int, replicas: int) -> None:
    given = cluster(dataWorkers={"minReplicas": 2, "maxReplicas": 5})
    document = build_ray_cluster(replace(given, replicas={DATA_WORKERS: wanted}))
    assert document["spec"]["workerGroupSpecs"][1]["replicas"] == replicas


def test_only_the_number_of_data_workers_changes_a_running_cluster() -> None:
    sizes = ({DATA_WORKERS: number} for number in (1, 9))
    few, many = (build_ray_cluster(replace(cluster(), replicas=size)) for size in sizes)
    few["spec"]["workerGroupSpecs"][1]["replicas"] = 9
    assert few["spec"] == many["spec"]


def test_pods_get_their_own_account_unless_settings_name_one() -> None:
    account = build_service_account(OWNER)
    assert account["automountServiceAccountToken"] is False
    own = build_ray_cluster(cluster())["spec"]
    named = build_ray_cluster(cluster({"serviceAccount": "reader"}))["spec"]
    for spec, name in ((own, account["metadata"]["name"]), (named, "reader")):
        groups = (spec["headGroupSpec"], *spec["workerGroupSpecs"])
        assert {group["template"]["spec"]["serviceAccountName"] for group in groups} == {name}


def test_the_policy_admits_the_cluster_the_operator_and_prometheus() -> None:
    network = NetworkSettings(prometheus_namespace="monitoring", prometheus_labels={"app": "p"})
    policy = build_network_policy(OWNER, network)["spec"]
    ports = [[port["port"] for port in rule.get("ports", ())] for rule in policy["ingress"]]
    assert ports == [[], [8265, 9464, 8080], [8080, 9464]]
    assert policy["policyTypes"] == ["Ingress"]
    own = policy["ingress"][0]["from"]
    assert own == [{"podSelector": {"matchLabels": {"ray.io/cluster": "clicks-0f3c6"}}}]


def test_the_policy_admits_the_configured_api_server_proxy() -> None:
    settings = {"network": {"apiServerCidrs": ["10.0.0.0/28", "fd00::/64"]}}
    _, asks = build_network_policy(OWNER, cluster(settings).settings.network)["spec"]["ingress"]
    operator, *proxy = asks["from"]
    assert "ipBlock" not in operator
    assert proxy == [{"ipBlock": {"cidr": "10.0.0.0/28"}}, {"ipBlock": {"cidr": "fd00::/64"}}]


def test_egress_is_closed_only_by_a_setting() -> None:
    closed = build_network_policy(OWNER, NetworkSettings(egress=()))["spec"]
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    own_pods, *name_servers = closed["egress"]
    assert own_pods["to"] == [{"podSelector": {"matchLabels": {"ray.io/cluster": "clicks-0f3c6"}}}]
    assert [rule["ports"][0]["port"] for rule in name_servers] == [53, 53, 5353]


def test_closed_egress_opens_no_port_to_every_address() -> None:
    for build in (build_network_policy, build_history_policy):
        rules = build(OWNER, NetworkSettings(egress=()))["spec"]["egress"]
        assert all(rule.get("to") for rule in rules)
        peers = [peer for rule in rules for peer in rule["to"]]
        assert all(
            peer.get("podSelector", {}).get("matchLabels") or "ipBlock" in peer for peer in peers
        )


def test_name_servers_are_a_setting() -> None:
    rule = {"to": [{"ipBlock": {"cidr": "10.0.0.10/32"}}], "ports": [{"port": 53}]}
    network = {"egress": [], "nameServers": ["OpenShift", rule]}
    settings = cluster({"network": network}).settings.network
    _, openshift, own = build_network_policy(OWNER, settings)["spec"]["egress"]
    assert {port["port"] for port in openshift["ports"]} == {5353}
    assert own == rule
    with pytest.raises(ValidationError):
        cluster({"network": {"nameServers": ["kube-dns"]}})


def test_disruption_budgets_protect_the_pods_of_an_attempt() -> None:
    spec = cluster(trainers={"replicas": 3}, dataWorkers={"minReplicas": 4}).spec
    budgets = build_disruption_budgets(OWNER, spec)
    assert [budget["spec"]["minAvailable"] for budget in budgets] == [1, 3, 3]
    assert len({budget["metadata"]["name"] for budget in budgets}) == 3


def test_config_and_token_can_be_read_back() -> None:
    config = build_config_map(OWNER, 1, "abc", {"kind": "DatasetExperiment"})
    assert json.loads(config["data"]["experiment.json"]) == {"kind": "DatasetExperiment"}
    assert config["metadata"]["name"] == "clicks-0f3c6-1-abc"
    secret = build_token_secret(OWNER, "t0ken")
    assert base64.b64decode(secret["data"]["auth_token"]) == b"t0ken"
    assert config["immutable"] is True
    assert secret["immutable"] is True


@given(
    name=st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True),
    uid=st.uuids(),
    attempt=st.integers(1, 2**31 - 1),
)
def test_names_fit_their_bounds(name: str, uid: Any, attempt: int) -> None:
    owner = Owner(name=name, namespace="n", uid=str(uid))
    assert len(owner.ray_cluster) <= MAX_RAY_CLUSTER_NAME_CHARS
    service = f"{owner.ray_cluster}-head-svc"
    assert len(service) <= 63
    assert owner.submission_id(attempt) != owner.submission_id(attempt + 1)


OUTPUT = {"output": {"parquet": {"uri": "kept/"}}}


def test_a_cluster_that_writes_a_table_has_no_trainers() -> None:
    built, trains = (build_ray_cluster(cluster(**spec)) for spec in (OUTPUT, {}))
    names = [group["groupName"] for group in built["spec"]["workerGroupSpecs"]]
    assert names == [DATA_WORKERS]
    assert built["spec"]["workerGroupSpecs"][0] == trains["spec"]["workerGroupSpecs"][1]
    assert built["spec"]["headGroupSpec"] == trains["spec"]["headGroupSpec"]
    annotations = built["metadata"]["annotations"]
    assert TRAINERS_ANNOTATION not in annotations
    assert annotations[CLUSTER_HASH_ANNOTATION] != hash_cluster_side(cluster().spec)


def test_paths_of_templates_lead_back_to_the_spec() -> None:
    trains, writes = (build_ray_cluster(cluster(**spec)) for spec in ({}, OUTPUT))
    head = {"spec.headGroupSpec.template": "spec.head.template"}
    assert name_templates(trains) == head | {
        "spec.workerGroupSpecs[0].template": "spec.trainers.template",
        "spec.workerGroupSpecs[1].template": "spec.dataWorkers.template",
    }
    assert name_templates(writes) == head | {
        "spec.workerGroupSpecs[0].template": "spec.dataWorkers.template"
    }
