"""Invalid expressions are refused before a cluster is created, without Arrow in the operator."""

import subprocess
import sys
from typing import Any

import pytest
from world import World, build_document, running

from dataset_operator.readings import MAX_EXPRESSION_CHARS

BROKEN = {
    "spec.dataset.where": {"dataset": {"parquet": {"uri": "t/"}, "where": "day >="}},
    "spec.pipeline[0].filter.where": {"pipeline": [{"filter": {"where": "a and or b"}}]},
    "spec.pipeline[0].derive.columns[0].expression": {
        "pipeline": [{"derive": {"columns": [{"name": "x", "expression": "(a"}]}}]
    },
    "spec.pipeline[0].weight.by": {"pipeline": [{"weight": {"column": "w", "by": "case"}}]},
    "spec.training.evaluation.where": {"training": {"evaluation": {"where": "'open"}}},
}


@pytest.mark.parametrize(("path", "spec"), BROKEN.items(), ids=BROKEN)
def test_an_invalid_expression_creates_no_cluster(path: str, spec: dict[str, Any]) -> None:
    world = World(build_document(**spec))
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.events == ["Warning InvalidSpec"]
    assert f"{path}: " in world.status["conditions"][0]["message"]
    assert world.ray_cluster is None


def test_an_edit_to_an_invalid_expression_keeps_the_run() -> None:
    world = running()
    world.edit(updatePolicy="Restart", pipeline=[{"filter": {"where": "a >"}}])
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.condition("Training") == ("True", "Running")
    assert world.status["run"] == 1
    world.edit(pipeline=[{"filter": {"where": "a > 0"}}])
    world.settle()
    assert world.condition("Accepted") == ("True", "ValidSpec")
    assert world.status["run"] == 2


def test_the_operator_does_not_parse_very_long_expressions() -> None:
    long = {"filter": {"where": f"a in ({', '.join(['1'] * 5_000)})"}}
    steps = [long] * (MAX_EXPRESSION_CHARS // len(long["filter"]["where"]))
    world = World(build_document(pipeline=[*steps, long, {"filter": {"where": "a >"}}]))
    world.settle()
    assert world.condition("Training") == ("True", "Running")  # the driver will refuse it


def test_the_operator_needs_no_arrow() -> None:
    script = (
        "import sys; sys.modules.update(dict.fromkeys(('pyarrow', 'numpy', 'ray', 'torch')));"
        "import dataset_operator.process, dataset_operator.cli"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
