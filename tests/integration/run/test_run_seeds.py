"""`lastmile run --seeds`: repeats with other seeds, on the same rows, which commands find again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from run_support import Project, clicks_spec
from warm_lastmile import Ended, Lastmile

SEEDS = 3
# Each run trains the built-in model on the rows of the recorder's tests, and evaluates it.
TRAINING: dict[str, Any] = {
    "entrypoint": "pipeline_runtime.training.ranking:train_loop",
    "columns": ["score", "user", "label"],
    "labelColumn": "label",
    "seed": 4,
    "config": {"categorical": ["user"], "dense": ["score"]},
    "evaluation": {"where": "ts < 4000"},
}


@pytest.fixture(scope="module")
def lastmile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lastmile]:
    lastmile = Lastmile(tmp_path_factory.mktemp("seeds"))
    yield lastmile
    lastmile.close()


def run_seeds(lastmile: Lastmile, run: Project, *more: str) -> Ended:
    command = ["run", "-f", "manifest.yaml", "--metrics-port", "0", "--storage-root", run.root]
    return lastmile.run(*command, "--seeds", str(SEEDS), *more, cwd=run.folder)


def list_stored(lastmile: Lastmile, run: Project) -> list[dict[str, Any]]:
    ended = lastmile.run("runs", str(Path(run.root) / "experiments"), "--json", cwd=run.folder)
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return sorted((each["summary"] for each in found), key=lambda s: s["seeds"]["training"])


def test_repeats_differ_in_the_seed_alone(
    project: Callable[..., Project], lastmile: Lastmile
) -> None:
    run = project()
    run.write(clicks_spec(run, training=TRAINING))
    ended = run_seeds(lastmile, run)
    assert ended.code == 0, ended
    found = list_stored(lastmile, run)
    assert [each["seeds"]["training"] for each in found] == [4, 5, 6]
    assert len({each["run"]["runHash"] for each in found}) == SEEDS
    assert len({each["run"]["seedGroup"] for each in found}) == 1
    assert len({each["checksum"]["sum"] for each in found}) == 1
    assert len({each["evaluationSteps"][-1]["rowsOut"] for each in found}) == 1
    losses = {each["training"]["metrics"]["eval_loss"] for each in found}
    assert len(losses) == SEEDS
    assert "eval_loss" in ended.stdout.rsplit("3 seeds", 1)[1]
    # A later command continues nothing, since all are complete.
    again = run_seeds(lastmile, run, "--resume", "--json")
    assert again.code == 0, again
    assert len(list_stored(lastmile, run)) == SEEDS
    assert [each["seeds"]["training"] for each in json.loads(again.stdout)] == [4, 5, 6]


def test_failed_repeat_ends_the_command(
    project: Callable[..., Project], lastmile: Lastmile
) -> None:
    run = project()
    run.write(clicks_spec(run, config={"failAt": 2}))
    ended = run_seeds(lastmile, run, "--json")
    assert ended.code == 1
    assert len(list_stored(lastmile, run)) == 1
    assert [each["run"]["outcome"] for each in json.loads(ended.stdout)] == ["Failed"]


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        pytest.param({}, ["--output", "here"], id="one-folder"),
        pytest.param({"output": {"parquet": {"uri": "kept/"}}}, [], id="no-training"),
    ],
)
def test_repeats_that_make_no_sense_are_refused(
    project: Callable[..., Project], lastmile: Lastmile, spec: dict[str, Any], options: list[str]
) -> None:
    run = project()
    whole = clicks_spec(run, **spec)
    if spec:
        del whole["training"]
    run.write(whole)
    assert run_seeds(lastmile, run, *options).code == 2
    assert not (Path(run.root) / "experiments").exists()
