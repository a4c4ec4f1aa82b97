"""A whole run over a kind of source that only a test knows: plan, feed, training, and resume."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_support import Project
from warm_lastmile import Lastmile

SUPPORT = Path(__file__).parents[2] / "support"
ROWS = 640


@pytest.fixture(scope="module")
def toy_lastmile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lastmile]:
    """Run a `lastmile` whose environment adds the kind of source."""
    path = os.pathsep.join(filter(None, (str(SUPPORT), os.environ.get("PYTHONPATH"))))
    env = {"LASTMILE_SOURCES": "toy_source.model:ToySource", "PYTHONPATH": path}
    lastmile = Lastmile(tmp_path_factory.mktemp("toy"), env)
    yield lastmile
    lastmile.close()


def build_spec(project: Project) -> dict[str, Any]:
    return {
        "dataset": {"toy": {"rows": ROWS, "unitRows": 80}, "where": "id >= 100", "rowKey": ["id"]},
        "pipeline": [{"filter": {"where": "items is not null"}}],
        "training": {
            "entrypoint": f"{project.module}:loop",
            "batchSize": 30,
            "labelColumn": "score",
            "columns": ["id"],
            "checkpoint": {"everySteps": 5},
            "config": {"folder": str(project.folder), "failAt": 12},
        },
        "pipelineOptions": {"preserveOrder": True},
    }


def read_steps(project: Project) -> list[tuple[int, list[int]]]:
    records = map(json.loads, (project.folder / "rank0.jsonl").read_text().splitlines())
    return [(record["step"], record["ids"]) for record in records if "step" in record]


def test_it_trains_fails_and_resumes(tmp_path: Path, toy_lastmile: Lastmile) -> None:
    project = Project(folder=tmp_path, root=str(tmp_path), name="toy")
    project.write(build_spec(project))
    failed = toy_lastmile.run(*project.args())
    assert failed.code != 0, str(failed)
    before = read_steps(project)
    assert [step for step, _ in before] == list(range(1, 13)), str(failed)
    dataset = project.summary.dataset
    assert (dataset.row_groups, dataset.row_groups_read) == (8, 7)

    (tmp_path / "cured").touch()
    resumed = toy_lastmile.run(*project.args("--resume"))
    assert resumed.code == 0, str(resumed)
    after = read_steps(project)[len(before) :]
    assert 1 < after[0][0] <= 11  # from a checkpoint
    trained = dict(before) | dict(after)
    assert dict(before).items() <= trained.items()
    assert sorted(number for ids in trained.values() for number in ids) == list(range(100, ROWS))
