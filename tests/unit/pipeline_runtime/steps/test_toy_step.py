"""A folder is all that a new step needs: `clip`, of tests/support/toy_steps.

A process of its own has its model in `LASTMILE_STEPS`, and prints what it finds as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[4]
SUPPORT = ROOT / "tests" / "support"
ENVIRONMENT = {
    "LASTMILE_STEPS": "toy_steps.clip.model:ClipStep",
    "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(ROOT)]),
}
PROGRAM = """
import inspect, json, sys
import yaml
from pipeline_runtime import Pipeline
from pipeline_runtime.config import ManifestError, parse_experiment, run_hash
from pipeline_runtime.config.reading.overrides import complete_override
from pipeline_runtime.materialization.recipe import Layout, build_recipe
from pipeline_runtime.plan import explain
from tools.crd import build_crd
from tools.steps import render_guide, render_methods, render_reference

exec(render_methods(), module := {})

class Toys(Pipeline, module["StepMethods"]):
    __slots__ = ()

def find_problems(step):
    document = pipeline.document("toy")
    document["spec"]["pipeline"] = [step]
    try:
        return parse_experiment(document) and []
    except ManifestError as error:
        return [str(problem) for problem in error.problems]

pipeline = Toys.read_parquet(sys.argv[1]).clip("x", highest=3).filter("x > 1")
spec = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
layout = Layout(bucket_by="x", buckets=2, sort_by=())
experiment = pipeline.experiment("toy")
recipe = build_recipe(experiment, 1, source="a", columns=(), where=(), layout=layout)
print(json.dumps({
    "modules": recipe.parts["modules"],
    "rows": pipeline.to_table().to_pydict(),
    "explain": pipeline.explain(),
    "manifest": yaml.safe_load(pipeline.to_yaml("toy"))["spec"]["pipeline"],
    "run": run_hash(pipeline.experiment("toy")),
    "signature": str(inspect.signature(Toys.clip)),
    "doc": Toys.clip.__doc__,
    "crd": spec["properties"]["pipeline"]["items"],
    "reference": render_reference(),
    "guide": render_guide(),
    "completions": complete_override("pipeline[0].c"),
    "fields": complete_override("pipeline[0].clip."),
    "misspelt kind": find_problems({"clpi": {}}),
    "misspelt field": find_problems({"clip": {"columns": ["x"], "highst": 1}}),
    "out of bounds": find_problems({"clip": {"columns": ["x"], "highest": 1001}}),
    "broken rule": find_problems({"clip": {"columns": ["x"], "highest": -1}}),
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    table = tmp_path_factory.mktemp("toy") / "table.parquet"
    pq.write_table(pa.table({"x": [-5, 1, 2, 9, None]}), table)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(table)],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_toy_step_runs_in_a_pipeline(found: dict[str, Any]) -> None:
    assert found["rows"] == {"x": [2, 3]}
    assert "clip x to 0..3" in found["explain"].replace(": ", " ")
    assert found["run"]


def test_a_toy_step_has_a_typed_method(found: dict[str, Any]) -> None:
    assert found["signature"] == (
        "(self, *columns: 'str', highest: 'int', lowest: 'int' = 0) -> 'Self'"
    )
    assert "highest: Largest value." in found["doc"]
    assert found["manifest"][0] == {"clip": {"columns": ["x"], "highest": 3, "lowest": 0}}


def test_the_code_of_a_toy_step_is_in_the_recipe(found: dict[str, Any]) -> None:
    assert {"toy_steps.clip.model", "toy_steps.clip.transform"} <= found["modules"].keys()


def test_a_toy_step_is_in_the_crd_with_its_rules(found: dict[str, Any]) -> None:
    (one_kind,) = found["crd"]["x-kubernetes-validations"]
    assert "has(self.clip)" in one_kind["rule"]
    clip = found["crd"]["properties"]["clip"]
    assert clip["required"] == ["columns", "highest"]
    assert clip["properties"]["lowest"] == {
        "description": "Smallest value.",
        "type": "integer",
        "format": "int32",
        "minimum": -1000,
        "maximum": 1000,
    }
    (rule,) = clip["x-kubernetes-validations"]
    assert "<= self.highest" in rule["rule"]
    assert rule["fieldPath"] == ".highest"


def test_a_toy_step_is_in_the_reference(found: dict[str, Any]) -> None:
    assert "## pipeline[].clip\n" in found["reference"]
    assert "| `lowest` | integer -1,000 to 1,000 | `0` | smallest value |" in found["reference"]
    assert "## clip\n" in found["guide"]


def test_a_toy_step_is_hinted_at_and_completed(found: dict[str, Any]) -> None:
    assert "did you mean clip?" in found["misspelt kind"][0]
    assert any("did you mean highest?" in problem for problem in found["misspelt field"])
    assert set(found["completions"]) == {"pipeline[0].cast.", "pipeline[0].clip."}
    assert "pipeline[0].clip.highest=" in found["fields"]


@pytest.mark.parametrize("case", ["out of bounds", "broken rule"])
def test_the_rules_of_a_toy_step_hold(found: dict[str, Any], case: str) -> None:
    (problem,) = found[case]
    assert "spec.pipeline[0].clip.highest" in problem
