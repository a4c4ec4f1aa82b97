"""The planner: what is pushed to the files, what is read, what is fused, what is refused."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_one_tells, assert_told

from pipeline_runtime import Pipeline
from pipeline_runtime.config import load_manifests
from pipeline_runtime.config.base import MAX_EXPRESSION_CHARS
from pipeline_runtime.errors import ManifestError, SourceError
from pipeline_runtime.pipeline import iter_tables
from pipeline_runtime.plan import Plan, build_plan, explain, plan_document


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two days of 100 rows in row groups of 25, and a side table."""
    folder = tmp_path_factory.mktemp("plan")
    for day in (1, 2):
        table = pa.table(
            {
                "user": pa.array(range(100), pa.int64()),
                "score": pa.array([i / 100 for i in range(100)], pa.float32()),
                "country": pa.array([("de", "fr", None)[i % 3] for i in range(100)]),
                "items": pa.array([[i, i + 1] for i in range(100)], pa.list_(pa.int64())),
                "clicked": pa.array([i % 5 == 0 for i in range(100)]),
            }
        )
        path = folder / f"t/day=2026-01-0{day}/part-0.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(table, path, row_group_size=25)
    (folder / "spam").mkdir()
    pq.write_table(pa.table({"user": [1, 2, None]}), folder / "spam/a.parquet")
    return str(folder)


def base(**options: str) -> Pipeline:
    return Pipeline.read_parquet("t/", **options)


def read(plan: Plan) -> tuple[int, int, int]:
    pruning = plan.training.scan.pruning
    return pruning.files_read, pruning.row_groups_read, pruning.rows_read


# pipeline, (files, row groups, rows) read, predicates pushed
PRUNING = {
    "no predicate reads everything": (base(), (2, 8, 200), ()),
    "a partition predicate drops files": (
        base(where="day = '2026-01-02'"),
        (1, 4, 100),
        ("day = '2026-01-02'",),
    ),
    "statistics drop row groups": (base().filter("user < 25"), (2, 2, 50), ("user < 25",)),
    "conjuncts are pushed one by one": (
        base().filter("user < 50 and upper(country) = 'DE'"),
        (2, 4, 100),
        ("user < 50",),
    ),
    "a filter is pushed past steps that leave its columns alone": (
        base().derive(x="score * 2").anti_join("spam/", on="user").filter("user >= 75"),
        (2, 2, 50),
        ("user >= 75",),
    ),
    "a filter on a derived column stays": (
        base().derive(user="user + 100").filter("user < 25"),
        (2, 8, 200),
        (),
    ),
    "a renamed column is another column": (
        base().rename({"user": "uid"}).filter("uid < 25"),
        (2, 8, 200),
        (),
    ),
    "pushdown off reads everything": (
        base(where="day = '2026-01-02'").with_options(pushdown=False),
        (2, 8, 200),
        (),
    ),
}


@pytest.mark.parametrize(("pipeline", "expected", "pushed"), PRUNING.values(), ids=PRUNING)
def test_predicates_prune_files_and_row_groups(
    root: str, pipeline: Pipeline, expected: tuple[int, int, int], pushed: tuple[str, ...]
) -> None:
    plan = pipeline.plan(root)
    assert read(plan) == expected
    assert plan.training.pushed == pushed


PROJECTION = {
    "only what is selected is read": (base().select("user"), {"user"}),
    "what a filter reads is read": (base().filter("score > 0").select("user"), {"user", "score"}),
    "what a derive makes is not read": (
        base().derive(label="clicked").select("label"),
        {"clicked"},
    ),
    "what is replaced before use is not read": (
        base().derive(score="user * 1.0").select("score"),
        {"user"},
    ),
    "projection off reads all": (
        base().select("user").with_options(projection=False),
        {"user", "score", "country", "items", "clicked", "day"},
    ),
}


@pytest.mark.parametrize(("pipeline", "columns"), PROJECTION.values(), ids=PROJECTION)
def test_only_columns_that_something_uses_are_read(
    root: str, pipeline: Pipeline, columns: set[str]
) -> None:
    assert set(pipeline.plan(root).training.read_columns) == columns


def test_adjacent_steps_are_one_stage_and_fusion_off_makes_one_each(root: str) -> None:
    pipeline = base().filter("user > 3").derive(x="user + 1").drop("items")
    assert [s.name for s in pipeline.plan(root).training.stages] == ["read+filter+derive+drop"]
    unfused = pipeline.with_options(fusion=False).plan(root).training.stages
    assert [stage.name for stage in unfused] == ["read", "filter", "derive", "drop"]


def test_a_map_with_resources_runs_as_a_stage_of_its_own(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan_functions.py").write_text("def same(table):\n    return table\n")
    monkeypatch.syspath_prepend(tmp_path)
    pipeline = (
        base().select("user", "score").map("plan_functions:same", resources={"cpu": 2}).drop("user")
    )
    stages = pipeline.derive(x="1").plan(root).training.stages
    assert [stage.name for stage in stages] == ["read+select", "map", "drop+derive"]
    assert stages[1].resources is not None
    assert stages[1].resources.cpu == 2


def test_a_filter_after_a_map_is_not_pushed_past_it(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan_maps.py").write_text("def same(table):\n    return table\n")
    monkeypatch.syspath_prepend(tmp_path)
    plan = base().map("plan_maps:same").filter("user < 25").plan(root)
    assert plan.training.pushed == ()
    assert_one_tells(explain(plan).splitlines(), "… not pushed … user < 25 … map")


def test_a_plan_shows_the_names_of_steps(root: str) -> None:
    plan = base().filter("score > 0.1").named("good").plan(root)
    assert_one_tells(explain(plan).splitlines(), "… good: score > 0.1")
    assert [label for _, _, label in plan.training.step_rows][-1] == "good: score > 0.1"


# steps, their options → the engine, why, whether it may be threads
FEEDS = {
    "no step calls Python": ({}, {}, "Readers", "threads", True),
    "a step calls Python": ({"function": "same"}, {}, "Readers", "spec.pipeline[1]", False),
    "a step has resources": (
        {"function": "same", "resources": {"cpu": 2}},
        {},
        "RayData",
        "spec.pipeline[1]",
        False,
    ),
    "steps are not fused": ({}, {"fusion": False}, "RayData", "spec.pipeline[0]", False),
    "threads are asked for": (
        {"function": "same"},
        {"feed": "threads"},
        "Readers",
        "feed: Threads",
        True,
    ),
    "readers are asked for": ({}, {"feed": "readers"}, "Readers", "feed: Readers", False),
    "Ray Data is asked for": ({}, {"feed": "ray_data"}, "RayData", "feed: RayData", False),
}


@pytest.mark.parametrize(
    ("step", "options", "engine", "reason", "may_be_threads"), FEEDS.values(), ids=list(FEEDS)
)
def test_the_feed_is_chosen_by_what_the_steps_need(
    step: dict[str, Any],
    options: dict[str, Any],
    engine: str,
    reason: str,
    may_be_threads: bool,
    root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "feed_maps.py").write_text("def same(table):\n    return table\n")
    monkeypatch.syspath_prepend(tmp_path)
    pipeline = base().filter("score > 0.1").with_options(**options)
    if step:
        more = {name: value for name, value in step.items() if name != "function"}
        pipeline = pipeline.map(f"feed_maps:{step['function']}", **more)
    plan = pipeline.plan(root)
    assert (plan.feed.engine, plan.feed.may_be_threads) == (engine, may_be_threads)
    assert plan.feed.may_switch is (plan.feed.may_be_threads and "feed" not in options)
    assert reason in plan.feed.reason
    assert_one_tells(explain(plan).splitlines(), f"… {engine} … {plan.feed.reason}")


def test_training_and_evaluation_share_no_row_and_lose_none(root: str) -> None:
    experiment = base().experiment(
        "split", evaluation={"where": "day = '2026-01-02'"}, columns=["user"]
    )
    plan = build_plan(experiment, root)
    assert plan.evaluation is not None
    assert plan.training.scan.pruning.files_read == 1
    assert plan.evaluation.scan.pruning.files_read == 1
    assert plan.training.scan.units[0].place != plan.evaluation.scan.units[0].place


def test_a_split_may_be_as_long_as_any_expression(root: str) -> None:
    where = "user < 25"
    where += " " * (MAX_EXPRESSION_CHARS - len(where) - 1) + " "
    plan = build_plan(base().experiment("s", evaluation={"where": where}, columns=["user"]), root)
    assert plan.evaluation is not None
    assert plan.evaluation.scan.pruning.rows_read == 50
    assert plan.training.scan.pruning.rows_read == 150


def test_rows_whose_split_is_null_are_trained_on_and_a_filter_of_like_text_drops_them(
    root: str,
) -> None:
    where = "country = 'de'"
    experiment = base().filter(f"not ({where})").experiment("s", evaluation={"where": where})
    filtered = pa.concat_tables(iter_tables(build_plan(experiment, root).training))
    assert set(filtered.column("country").to_pylist()) == {"fr"}
    experiment = base().experiment("s", evaluation={"where": where}, columns=["country"])
    tables = list(iter_tables(build_plan(experiment, root).training))
    assert sum(table.column("country").null_count for table in tables) == 66
    assert sum(table.num_rows for table in tables) == 132


BROKEN: dict[str, tuple[Pipeline, str]] = {
    "unknown column in where": (
        base(where="dya = '2026-01-01'"),
        "spec.dataset.where: … 'dya' … 'day' … \n    dya = '2026-01-01'\n    ^^^",
    ),
    "type mismatch in a filter": (base().filter("user = 'x'"), "spec.pipeline[0].filter.where: "),
    "unknown column in select": (
        base().select("usr"),
        "spec.pipeline[0].select.columns[0]: … 'usr' … 'user'",
    ),
    "unknown row key": (
        base(row_key="usr"),
        "spec.dataset.rowKey: … 'usr' … 'user'",
    ),
}


@pytest.mark.parametrize(("pipeline", "message"), BROKEN.values(), ids=BROKEN)
def test_what_the_schema_shows_to_be_wrong_is_refused(
    root: str, pipeline: Pipeline, message: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        pipeline.plan(root)
    assert_told(str(caught.value), message)


def test_all_problems_are_reported_at_once(root: str) -> None:
    pipeline = base(where="nope > 1", row_key="gone").filter("user = 'x'").drop("missing")
    with pytest.raises(ManifestError) as caught:
        pipeline.plan(root)
    assert [problem.path for problem in caught.value.problems] == [
        "spec.dataset.rowKey",
        "spec.dataset.where",
        "spec.pipeline[0].filter.where",
        "spec.pipeline[1].drop.columns[0]",
    ]


@pytest.mark.parametrize("ahead", [True, False])
def test_explain_says_whether_batches_are_made_ahead(root: str, ahead: bool) -> None:
    plan = base().with_options(prefetch=ahead).plan(root)
    other = base().with_options(prefetch=not ahead).plan(root)
    assert explain(plan) != explain(other)
    assert plan_document(plan)["prefetch"] is ahead


def test_a_side_table_over_its_bound_is_refused_with_its_size(root: str) -> None:
    pipeline = base().anti_join("spam/", on="user", maxBytes=1)
    with pytest.raises((SourceError, ManifestError), match=r"maxBytes.*\b1 byte"):
        pipeline.plan(root)


def test_explain_says_what_is_read_pushed_fused_and_broadcast(root: str) -> None:
    plan = (
        base(where="day = '2026-01-02'")
        .anti_join("spam/", on="user")
        .filter("upper(country) = 'DE'")
        .select("user")
        .plan(root)
    )
    text = explain(plan)
    for facts in (
        "… Stage 0 … fused … 1 CPU",
        "… columns … 3 … 6 … user, country, day",
        "… files … 1 … 2 … row groups … 4 … 8 … rows … 100 … 200",
        "… pushed … day = '2026-01-02'",
        "… not pushed … upper(country) = 'DE'",
        "… spam/ … 3 … broadcast",
        "… identity",
    ):
        assert_one_tells(text.splitlines(), facts)
    document = plan_document(plan)
    assert document["text"] == text
    assert [step["kind"] for step in document["stages"][0]["steps"]] == [
        "read",
        "where",
        "antiJoin",
        "filter",
        "select",
    ]


def test_yaml_and_python_make_the_same_plan(root: str, tmp_path: Path) -> None:
    pipeline = (
        base(where="day >= '2026-01-01'", row_key=["user", "day"])
        .anti_join("spam/", on="user")
        .filter("country is not null")
        .downsample(50, where="not clicked", seed=3, weight_column="w")
        .pad_sequence("items", length=3)
        .with_options(preserve_order=True)
    )
    path = tmp_path / "m.yaml"
    path.write_text(
        """
apiVersion: experiments.lastmile.dev/v1alpha1
kind: DatasetExperiment
metadata: {name: look}
spec:
  dataset:
    parquet: {uri: t/}
    where: day >= '2026-01-01'
    rowKey: [user, day]
  pipeline:
  - antiJoin: {parquet: {uri: spam/}, keys: [user]}
  - filter: {where: country is not null}
  - downsample: {where: not clicked, keepPercent: 50, seed: 3, weightColumn: w}
  - padSequence: {columns: [items], length: 3, value: 0}
  pipelineOptions: {preserveOrder: true}
  training: {shuffle: {unit: None}}
"""
    )
    from_yaml = build_plan(load_manifests(path)[0].experiment, root)
    from_python = pipeline.plan(root)
    assert plan_document(from_yaml) == plan_document(from_python)
    assert _signature(from_yaml) == _signature(from_python)


def _signature(plan: Plan) -> object:
    steps = [(s.path, repr(s.transform).split("load=")[0]) for s in plan.training.steps]
    return plan.training.scan, plan.training.identity, steps
