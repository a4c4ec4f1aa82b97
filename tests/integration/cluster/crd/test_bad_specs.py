"""Broken specs before a real API server, and what it lets through before a real operator."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from broken_specs import generate
from commands import User, manifest
from crd_agreement import ONLY_MODELS_SEE, Api, check_equal, experiment, problems
from operator_process import Operator, operating

from dataset_operator.status import fit_message
from pipeline_runtime.config import GROUP, VERSION
from pipeline_runtime.config.texts.yaml_documents import TOO_DEEP
from tools.cluster.box import Box
from tools.crd import PLURAL

NUMBER = 300
SEED = int(os.environ.get("LASTMILE_SEED", "7"))
DEADLINE_SECONDS = 120.0
POLL_SECONDS = 0.2
# Deeper than Python's own calls go by default; Go's JSON ends at 10,000.
DEPTHS = (70, 1_500, 5_000, 9_000)

pytestmark = pytest.mark.usefixtures("played")


def generate_specs() -> list[dict[str, Any]]:
    """Return documents whose spec alone is broken; any API server judges the rest by itself."""
    found = []
    for broken in generate(SEED, 2 * NUMBER):
        document = broken.document
        is_alone = all(" at spec" in how for how in broken.how)
        if is_alone and not any(said.endswith(TOO_DEEP) for said in problems(document)):
            document["metadata"] = {"name": "broken"}
            found.append(document)
    return found[:NUMBER]


def test_the_api_server_and_the_models_refuse_the_same(box: Box) -> None:
    api = Api(box, "default")
    documents = generate_specs()
    said = [check_equal(api, document) for document in documents]
    assert len(documents) == NUMBER
    assert NUMBER / 2 < sum(map(bool, said)) < NUMBER


@pytest.mark.slow
def test_what_the_api_server_lets_through_harms_nobody_else(
    box: Box, namespace: str, tmp_path: Path
) -> None:
    user = User(box=box, namespace=namespace)
    deep = {f"deep-{depth}": f"spec.training.config: {TOO_DEEP}" for depth in DEPTHS}
    with operating(user, tmp_path) as operator:
        user.reads("submit", "-f", "-", stdin=manifest("healthy"))
        for depth in DEPTHS:
            create_deep(user, f"deep-{depth}", depth)
        bad = create_bad(Api(box, namespace))
        assert len(bad) > 3
        for name, said in (deep | bad).items():
            until(operator, lambda name=name: condition(user, name, "Accepted") != {})
            accepted = condition(user, name, "Accepted")
            assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
            shown = accepted["message"].removesuffix("…")
            assert fit_message(said).removesuffix("…")[:200] in shown
            assert condition(user, name, "ClusterReady") == {}
        until(operator, lambda: condition(user, "healthy", "ClusterReady").get("status") == "True")
        user.reads("stop", "healthy")
        until(operator, lambda: condition(user, "healthy", "Suspended").get("status") == "True")
        assert "healthy" in user.reads("get")
        assert "defect" not in operator.log.read_text()
        user.kubectl("delete", "dsexp", "--all", "--timeout=60s")


def create_deep(user: User, name: str, depth: int) -> None:
    """Written by hand: no client in Python gets so deep."""
    head = json.dumps(experiment(name) | {"spec": None}).removesuffix("null}")
    dataset = json.dumps(experiment()["spec"]["dataset"])
    config = '{"a": ' * depth + "0" + "}" * depth
    document = f'{head}{{"dataset": {dataset}, "training": {{"config": {config}}}}}}}'
    place = f"/apis/{GROUP}/{VERSION}/namespaces/{user.namespace}/{PLURAL}"
    user.box.kubectl("create", "--raw", place, "-f", "-", stdin=document)


def create_bad(api: Api) -> dict[str, str]:
    """Create what the API server takes and the models do not; names, and what the models say."""
    bad = [experiment(**difference.example) for difference in ONLY_MODELS_SEE.values()]
    bad += [document for document in generate_specs() if problems(document)]
    found = {}
    for index, document in enumerate(bad):
        name = f"bad-{index}"
        document["metadata"] = {"name": name}
        if api.refusal(document) == "":
            api.create(document, dry_run=False)
            if said := problems(api.get(name)):
                found[name] = "\n".join(said)
    return found


def condition(user: User, name: str, kind: str) -> dict[str, str]:
    """Return a condition of an experiment, or {} if it has none of this type."""
    path = f"jsonpath={{.status.conditions[?(@.type=={json.dumps(kind)})]}}"
    found: dict[str, str] = json.loads(user.kubectl("get", "dsexp", name, "-o", path) or "{}")
    return found


def until(operator: Operator, is_so: Any) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert operator.process.poll() is None, operator.log.read_text()[-5000:]
        assert time.monotonic() < deadline, operator.log.read_text()[-5000:]
        time.sleep(POLL_SECONDS)
