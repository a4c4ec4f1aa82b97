"""The real API server, KubeRay's own schema and its operator take what the builders render."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from cluster_commands import ROOT
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from property_tests import examples

from dataset_operator.api import DATA_WORKERS, ROLE_LABEL
from dataset_operator.builders.children import (
    build_accepted,
    build_config_map,
    build_disruption_budgets,
    build_network_policy,
    build_service_account,
    build_token_secret,
)
from dataset_operator.builders.pod_templates import ClusterInput
from dataset_operator.builders.raycluster import build_ray_cluster
from dataset_operator.names import Owner
from dataset_operator.settings import NetworkSettings, parse_settings
from pipeline_runtime.config import API_VERSION, KIND, parse_experiment
from tools.cluster.box import Box

WAIT = "--timeout=120s"
STRICT = ("--validate=strict", "-f", "-")
NUM_DATA_WORKERS = 2
ANY_UID = "00000000-0000-0000-0000-000000000000"
GUIDE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
ON_A_VOLUME, MIXED_POOLS = re.findall(r"^```yaml\n(.+?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def experiment(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "clicks"},
        "spec": {"dataset": {"parquet": {"uri": "t/"}}, **spec},
    }


def cluster_input(document: dict[str, Any], namespace: str, uid: str) -> ClusterInput:
    return ClusterInput(
        owner=Owner(name="clicks", namespace=namespace, uid=uid),
        spec=parse_experiment(document).spec,
        settings=parse_settings({"runtimeImage": "example.com/lastmile:none"}),
    )


@pytest.fixture
def restricted(played: Box, namespace: str) -> str:
    """A namespace that admits no pod beyond the restricted security level."""
    played.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    return namespace


def build_all(cluster: ClusterInput) -> Iterator[dict[str, Any]]:
    owner, config = cluster.owner, {"spec": cluster.spec.to_document()}
    yield build_token_secret(owner, "not-so-random")
    yield build_service_account(owner)
    yield build_config_map(owner, 1, "0123456789abcdef", config)
    yield build_accepted(owner, 1, config)
    yield build_network_policy(owner, NetworkSettings(prometheus_namespace="monitoring", egress=()))
    yield from build_disruption_budgets(owner, cluster.spec)
    yield build_ray_cluster(replace(cluster, replicas={DATA_WORKERS: NUM_DATA_WORKERS}))


def test_the_children_become_a_ready_cluster_and_go_with_their_experiment(
    box: Box, restricted: str
) -> None:
    here = ("-n", restricted)
    document = experiment(
        trainers={"gpusPerReplica": 1, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    )
    box.kubectl("create", *here, *STRICT, stdin=json.dumps(document))
    uid = box.kubectl("get", "dsexp", "clicks", *here, "-o", "jsonpath={.metadata.uid}")
    cluster = cluster_input(document, restricted, uid)
    children = {"apiVersion": "v1", "kind": "List", "items": list(build_all(cluster))}
    box.kubectl("apply", "--server-side", *here, *STRICT, stdin=json.dumps(children))

    name = f"raycluster/{cluster.owner.ray_cluster}"
    box.kubectl("wait", "--for=jsonpath={.status.state}=ready", WAIT, *here, name)
    pods = json.loads(box.kubectl("get", "pods", *here, "-o", "json"))["items"]
    roles = sorted(pod["metadata"]["labels"][ROLE_LABEL] for pod in pods)
    assert roles == ["data-workers", "data-workers", "head", "trainers"]
    for pod in pods:  # KubeRay's, where nothing is rendered
        ray = pod["spec"]["containers"][0]
        for probe in ("livenessProbe", "readinessProbe"):
            assert ray[probe]["httpGet"]["path"] == "/api/healthz"
    budget = f"pdb/{cluster.owner.disruption_budget('head')}"
    box.kubectl("wait", "--for=jsonpath={.status.currentHealthy}=1", WAIT, *here, budget)

    box.kubectl("delete", "dsexp", "clicks", *here, "--wait=true", WAIT)
    owned = "secret,configmap,networkpolicy,pdb,raycluster,pod"
    selector = "--selector=app.kubernetes.io/instance=clicks"
    box.kubectl("wait", "--for=delete", WAIT, *here, owned, selector)


TEXT = st.from_regex(r"[a-z]([a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
CPUS, MEMORY = st.sampled_from(["1", "500m", "2.5"]), st.sampled_from(["1Gi", "1500M", "2e9"])
RESOURCES = st.fixed_dictionaries(
    {},
    optional={
        field: st.fixed_dictionaries({}, optional={"cpu": CPUS, "memory": MEMORY})
        for field in ("requests",)
    },
)
ENV = st.lists(
    st.builds(lambda name: {"name": name.upper(), "value": name}, TEXT),
    max_size=3,
    unique_by=lambda variable: variable["name"],
)
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({"labels": st.dictionaries(TEXT, TEXT, max_size=2)}),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "nodeSelector": st.dictionaries(TEXT, TEXT, max_size=2),
                "priorityClassName": TEXT | st.none(),
                "tolerations": st.just([{"key": "spot", "operator": "Exists"}]),
                "topologySpreadConstraints": st.just(
                    [
                        {
                            "topologyKey": "topology.kubernetes.io/zone",
                            "maxSkew": 1,
                            "whenUnsatisfiable": "ScheduleAnyway",
                        }
                    ]
                ),
                "volumes": st.just([{"name": "scratch", "emptyDir": {}}]),
                "containers": st.builds(
                    lambda name, env: [
                        {"name": "ray", "env": env},
                        {"name": f"side-{name}", "image": "busybox"},
                    ],
                    TEXT,
                    ENV,
                ),
            },
        ),
    },
)


def group(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {}, optional={"resources": RESOURCES, "template": TEMPLATES, **more}
    )


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "image": st.just("registry.example.com/team/runtime:1.2"),
        "env": ENV,
        "envFrom": st.just([{"prefix": "P_", "configMapRef": {"name": "c", "optional": True}}]),
        "imagePullSecrets": st.just([{"name": "registry"}]),
        "storage": st.just({"root": "s3://bucket/", "secretRef": {"name": "keys"}}),
        "head": group(),
        "trainers": group(replicas=st.integers(1, 1024), gpusPerReplica=st.integers(0, 16)),
        "dataWorkers": group(minReplicas=st.integers(1, 20), maxReplicas=st.integers(20, 2000)),
    },
)


@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(spec=SPECS, workers=st.integers(0, 3000))
@example(spec=yaml.safe_load(ON_A_VOLUME)["spec"], workers=1)
@example(spec=yaml.safe_load(MIXED_POOLS)["spec"], workers=4)
def test_kuberays_schema_takes_every_cluster_and_forgets_nothing_of_it(
    kuberay: Box, spec: dict[str, Any], workers: int
) -> None:
    source = cluster_input(experiment(**spec), "default", ANY_UID)
    rendered = build_ray_cluster(replace(source, replicas={DATA_WORKERS: workers}))
    dry_run = ("create", "--dry-run=server", "-n", "default", "-o", "json", *STRICT)
    stored = json.loads(kuberay.kubectl(*dry_run, stdin=json.dumps(rendered)))
    assert_holds(stored["spec"], rendered["spec"], "spec")


def assert_holds(stored: Any, rendered: Any, path: str) -> None:
    """Everything that was rendered is there, whatever was filled in beside it."""
    if isinstance(rendered, dict):
        for key, value in rendered.items():
            if value or key in stored:  # an empty list or map may be left out
                assert_holds(stored[key], value, f"{path}.{key}")
    elif isinstance(rendered, list):
        assert len(stored) == len(rendered), path
        for index, value in enumerate(rendered):
            assert_holds(stored[index], value, f"{path}[{index}]")
    else:
        assert stored == rendered, path
