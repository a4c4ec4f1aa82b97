"""`lastmile profile` as a user runs it: a real table, a loop of the user's, the built-in model."""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from facts import assert_told
from run_support import Clicks, Project, clicks_spec
from warm_lastmile import Ended, Lastmile

LOOP = """
import ray

def loop(ctx):
    assert not ray.is_initialized()
    print("what the user prints")
    for _ in ctx.epochs():
        for batch in ctx.batches():
            assert batch["items"].shape == (len(batch["id"]), 4)
            ctx.report({}, {"step": ctx.step} if ctx.checkpoint_due() else None)
        ctx.report({}, {"step": ctx.step})

def broken(ctx):
    next(ctx.batches())
    raise ValueError("the user's own mistake")
"""


@pytest.fixture(scope="module")
def lastmile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lastmile]:
    running = Lastmile(tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.fixture
def profile(
    lastmile: Lastmile, project: Callable[..., Project]
) -> Callable[..., tuple[Ended, Project]]:
    """Runs the command over the clicks; arguments change the spec, as those of `clicks_spec`."""

    numbers = itertools.count()

    def run(*more: str, **changes: Any) -> tuple[Ended, Project]:
        made = project(f"profiled-{next(numbers)}")
        training = {"entrypoint": "profiled_loop:loop", **changes.pop("training", {})}
        spec = clicks_spec(made, training=training, **changes)
        spec["training"]["config"] = changes.get("config", {})
        made.write(spec, {"profiled_loop": LOOP})
        command = ["profile", "-f", str(made.folder / "manifest.yaml"), "--seconds", "1"]
        return lastmile.run(*command, "--storage-root", made.root, *more), made

    return run


Profile = Callable[..., tuple[Ended, Project]]


def test_a_loop_of_the_users_own(profile: Profile, clicks: Clicks) -> None:
    ended, project = profile("--json", dataWorkers={"resources": {"requests": {"cpu": 1}}})
    assert ended.code == 0, str(ended)
    found = json.loads(ended.stdout)  # and nothing else: what the user prints goes to stderr
    assert "what the user prints" in ended.stderr
    assert [step["rowsOut"] for step in found["steps"]] == [*clicks.counts, clicks.counts[-1]]
    assert found["sample"]["samples"] == len(clicks.kept)
    assert found["reading"]["columns"] == 6  # not the unused one
    need = found["need"]
    needed = need["demand"] * (1 + need["headroom"]) / need["reader"]["median"]
    assert need["workers"] == max(1, math.ceil(round(needed, 6)))
    assert not (Path(project.root) / "experiments").exists()


def test_the_built_in_model_and_its_page(profile: Profile, tmp_path: Path) -> None:
    ended, _ = profile(
        *("--output", str(tmp_path / "out")),
        training={
            "entrypoint": "pipeline_runtime.training.ranking:train_loop",
            "columns": ["score", "items", "unused"],
            "labelColumn": "label",
            "evaluation": {"holdoutPercent": 5, "by": ["user"]},
        },
        config={"dense": ["score"], "sequences": []},
    )
    assert ended.code == 0, str(ended)
    assert "Model's roofline" in ended.stdout
    # `items` is padded, but only for the model's sake.
    assert_told(ended.stdout, "… spec.training.columns: … unused, items")
    assert f"profile: {tmp_path / 'out' / 'profile.html'}" in ended.stdout
    assert "<svg" in (tmp_path / "out" / "profile.html").read_text()
    written = json.loads((tmp_path / "out" / "profile.json").read_text())
    used = {column["name"] for column in written["columns"] if column["isTrainedOn"]}
    assert used == {"id", "ts", "user", "country", "score"}


def test_what_cannot_be_measured_is_one_error(profile: Profile, lastmile: Lastmile) -> None:
    ended, project = profile(training={"entrypoint": "profiled_loop:broken"})
    assert ended.code == 1
    assert "ValueError: the user's own mistake" in ended.stderr
    assert "spec.training.entrypoint: profiled_loop:broken" in ended.stderr.splitlines()[-1]
    assert "pipeline_runtime" not in ended.stderr

    ended, _ = profile(pipeline=[{"filter": {"where": "score * 2 > 2"}}])
    assert (ended.code, ended.stdout) == (1, "")
    assert "spec.pipeline[0] (filter score * 2 > 2)" in ended.stderr

    ended, _ = profile(dataset={"parquet": {"uri": "gone/"}}, pipeline=[])
    assert ended.code == 3
    assert "gone" in ended.stderr

    ended = lastmile.run("profile", "-f", str(project.folder / "nothing.yaml"))
    assert ended.code == 2
    assert "nothing.yaml" in ended.stderr
