"""The operator's memory is bounded, whatever tenants store in the objects that it watches."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import User, manifest
from operator_process import Operator, operating

from dataset_operator.api import EXPERIMENT_LABEL, RAY_API_VERSION
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("played")

NUM_EACH = 4
OBJECT_BYTES = 1_400_000  # etcd stores at most 1.5 MB
# Measurements gave 46 and 82 MiB. Lists and watches of whole objects take more.
MAX_GROWTH_MIB = 150.0


def build_large_objects() -> Iterator[dict[str, Any]]:
    """Yield objects that users may write; once parsed, the experiments take 20 times the bytes."""
    container = {"name": "ray", "image": "example.com/none"}
    variables = [{"name": "LONG", "value": "x" * OBJECT_BYTES}]
    template = {"spec": {"containers": [{**container, "env": variables}]}}
    head = {"rayStartParams": {}, "template": template}
    config = {"lists": [[]] * (OBJECT_BYTES // 3)}
    for index in range(NUM_EACH):
        name = f"large-{index}"
        yield json.loads(manifest(name, suspend=True, training={"config": config}))
        yield {
            "apiVersion": RAY_API_VERSION,
            "kind": "RayCluster",
            "metadata": {"name": name, "labels": {EXPERIMENT_LABEL: name}},
            "spec": {"suspend": True, "headGroupSpec": head},
        }


def read_peak_mib(operator: Operator) -> float:
    """Return the peak memory of the process (proc(5))."""
    status = Path(f"/proc/{operator.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


def knows_all(operator: Operator) -> bool:
    """Return whether there was a pass over each of the large experiments."""
    known = [name for name in operator.metrics() if name.startswith("lastmile_experiment_phase{")]
    return sum('experiment="large-' in name for name in known) == NUM_EACH


def test_large_objects_of_tenants_cost_the_operator_little_memory(
    box: Box, namespace: str, tmp_path: Path
) -> None:
    user = User(box=box, namespace=namespace)
    with operating(user, tmp_path) as operator:
        user.reads("submit", "-f", "-", stdin=manifest(suspend=True))
        operator.until(lambda: "Suspended" in user.reads("get", "clicks"))
        before = read_peak_mib(operator)
        for document in build_large_objects():
            user.kubectl("create", "-f", "-", stdin=json.dumps(document))
        for kind in ("dsexp", "rayclusters"):
            user.kubectl("annotate", kind, "--all", "touched=yes")
        operator.until(lambda: knows_all(operator))
        assert read_peak_mib(operator) - before < MAX_GROWTH_MIB
        assert operator.stop() == 0
    with operating(user, tmp_path) as operator:  # it lists all of them at its start
        operator.until(lambda: knows_all(operator))
        assert read_peak_mib(operator) - before < MAX_GROWTH_MIB
