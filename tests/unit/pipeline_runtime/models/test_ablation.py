"""Ablation of the step `predict`: the importance of a model's inputs, over one read."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_all_told, assert_told
from trained_models import build_flights

from pipeline_runtime import Pipeline
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.config.steps import Step
from pipeline_runtime.errors import ManifestError, StepError
from pipeline_runtime.feed.making.work import run_group
from pipeline_runtime.models.scoring import open_model
from pipeline_runtime.plan import build_plan
from pipeline_runtime.report.files.measures_file import load_measures
from pipeline_runtime.sources import Opening
from pipeline_runtime.steps.base import ROW_HASH_COLUMN, BindContext
from pipeline_runtime.steps.binding import bind_step
from pipeline_runtime.steps.predict.transform import Predict

PROGRAM = """
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

def build(kind="sum"):
    def call(table):
        a, b = (table[name].to_numpy() for name in "ab")
        scores = 1 / (1 + np.exp(-(2 * a + b)))
        if kind == "nan":  # only where rows have values of others
            scores = np.where(np.sign(a) == np.sign(table["sign"].to_numpy()), scores, np.nan)
        return {"p": pa.array(scores), "words": table["word"]}
    return call
"""
INPUTS = ["a", "b", "unused", "word", "sign"]


@pytest.fixture(scope="module", autouse=True)
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("program")
    (folder / "ablated_program.py").write_text(PROGRAM)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("ablated_program", None)


def build_rows(num_rows: int = 400) -> pa.Table:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, num_rows))
    return pa.table(
        {
            "id": np.arange(num_rows),
            "a": a,
            "b": b,
            "unused": rng.standard_normal(num_rows),
            "word": [["x"], None, []] * (num_rows // 3) + [["y"]] * (num_rows % 3),
            "sign": np.sign(a),
            "label": rng.random(num_rows) < 1 / (1 + np.exp(-(2 * a + b))),
            "w": rng.integers(1, 5, num_rows),
            "one": np.ones(num_rows),
            ROW_HASH_COLUMN: rng.integers(0, 1 << 60, num_rows).astype(np.uint64),
        }
    )


ROWS = build_rows()
GROUPS = [{"name": name, "columns": [name]} for name in ("a", "b", "unused")]
OUTPUTS = [{"name": "p", "type": "double"}, {"name": "words", "type": "list<string>"}]


def build_step(given: dict[str, Any] | None = None, **ablation: Any) -> dict[str, Any]:
    own = {
        "name": "m",
        "function": "ablated_program:build",
        "format": "Arrow",
        "inputs": INPUTS,
        "outputs": OUTPUTS,
    }
    fields = {"model": "m", "groups": GROUPS, "label": "label"} | ablation
    return {"models": [given or own], "batchSize": 64, "ablation": fields}


def bind(step: dict[str, Any], schema: pa.Schema = ROWS.schema, root: str = ".") -> Predict:
    opening = Opening(storage_root=root)
    context = BindContext(
        open_side_table=lambda _: pytest.fail("no step here joins"),
        open_model=lambda request: open_model(request, "experiments/", opening),
    )
    bound = bind_step(Step.model_validate({"predict": step}, strict=False), schema, context)
    assert isinstance(bound, Predict)
    return bound


def measure(step: Predict, parts: Sequence[pa.Table]) -> dict[str, dict[str, Any]]:
    """Return the results by name, from states that were bytes meanwhile."""
    states = [step.load(step.observe(part)[1]) for part in parts]
    return {result["name"]: result for result in step.finish(step.merge(states))}


def permute(rows: pa.Table, seed: int, repeat: int) -> np.ndarray:
    total = int(np.sum(rows[ROW_HASH_COLUMN].to_numpy(), dtype=np.uint64))
    bits = np.random.Philox(np.random.SeedSequence([seed, repeat, total]))
    return np.random.Generator(bits).permutation(len(rows))


def find_auc(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """Return the share of pairs in the right order, ties as half."""
    above = scores[labels][:, None] - scores[~labels][None, :]
    pairs = weights[labels][:, None] * weights[~labels][None, :]
    return float(((above > 0) + (above == 0) / 2).ravel() @ pairs.ravel() / pairs.sum())


def find_loss(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    return float(np.average(-np.log(np.where(labels, scores, 1 - scores)), weights=weights))


@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("metric", ["AUC", "LogLoss"])
def test_an_importance_is_the_mean_drop_of_the_metric(metric: str, weight: str | None) -> None:
    """The definition of scikit-learn's `permutation_importance`, computed by hand."""
    found = measure(bind(build_step(metric=metric, weight=weight, seed=3)), [ROWS])
    a, b, labels = (ROWS[name].to_numpy(zero_copy_only=False) for name in ("a", "b", "label"))
    weights = ROWS["w"].to_numpy() if weight else np.ones(len(ROWS))

    def evaluate(a: np.ndarray, b: np.ndarray) -> float:
        scores = 1 / (1 + np.exp(-(2 * a + b)))
        if metric == "AUC":
            return find_auc(scores, labels, weights)
        return -find_loss(scores, labels, weights)

    orders = [permute(ROWS, 3, repeat) for repeat in range(5)]
    drops = {
        "a": [evaluate(a, b) - evaluate(a[order], b) for order in orders],
        "b": [evaluate(a, b) - evaluate(a, b[order]) for order in orders],
    }
    for name, wanted in drops.items():
        result = found[name]
        assert result["drops"] == pytest.approx(wanted, abs=1e-4)
        assert result["value"] == pytest.approx(np.mean(wanted), abs=1e-4)
        half = 2.7764 * np.std(wanted, ddof=1) / math.sqrt(5)
        low, high = result["interval"]
        assert (high - low) / 2 == pytest.approx(half, rel=1e-2)
        assert low < result["value"] < high
        assert abs(result["baseline"]) == pytest.approx(abs(evaluate(a, b)), abs=1e-4)
    assert found["a"]["value"] > found["b"]["value"] > 0.01


def test_an_input_that_the_model_ignores_has_no_importance() -> None:
    result = measure(bind(build_step()), [ROWS.slice(0, 150), ROWS.slice(150)])["unused"]
    assert (result["value"], result["interval"], result["drops"]) == (0.0, [0.0, 0.0], [0.0] * 5)
    assert (result["rows"], result["rowsPerPermutation"]) == (400, 200.0)


def test_columns_of_a_group_are_permuted_together() -> None:
    """A row keeps the sign that belongs to its value, so that no score is NaN."""
    step = build_step(groups=[{"name": "both", "columns": ["a", "sign"]}])
    step["models"][0]["options"] = {"kind": "nan"}
    assert measure(bind(step), [ROWS])["both"]["value"] > 0.1
    apart = bind(step | {"ablation": step["ablation"] | {"groups": GROUPS}})
    with pytest.raises(StepError) as caught:
        apart.observe(ROWS)
    assert_told(str(caught.value), "ablation.groups[0] … models[0] … 'p' … NaN")
    step["models"][0]["onInvalid"] = "SetNull"
    invalid = measure(bind(step | {"ablation": step["ablation"] | {"groups": GROUPS}}), [ROWS])
    assert invalid["a"]["rows"] == 400


def test_the_result_does_not_depend_on_the_order_of_chunks() -> None:
    step = bind(build_step(repeats=2))
    parts = [ROWS.slice(0, 100), ROWS.slice(0, 0), ROWS.slice(100, 220), ROWS.slice(320)]
    states = [step.load(step.observe(part)[1]) for part in parts]
    wanted = list(step.finish(step.merge(states)))
    for order in itertools.permutations(states):
        pairs = step.merge([step.merge(order[:2]), step.merge(order[2:])])
        assert list(step.finish(pairs)) == wanted


def test_other_seeds_and_repeats_permute_otherwise() -> None:
    drops = [measure(bind(build_step(seed=seed)), [ROWS])["a"]["drops"] for seed in (0, 0, 1)]
    assert drops[0] == drops[1]
    assert len({*drops[0], *drops[2]}) == 10
    fewer = measure(bind(build_step(repeats=1)), [ROWS])["a"]
    assert (fewer["drops"], fewer["interval"]) == (drops[0][:1], None)


@pytest.mark.parametrize("rows", [ROWS.slice(0, 0), ROWS.filter(ROWS["label"])])
@pytest.mark.parametrize("metric", ["AUC", "LogLoss"])
def test_an_importance_without_both_labels_is_not_defined(rows: pa.Table, metric: str) -> None:
    result = measure(bind(build_step(metric=metric)), [rows])["a"]
    is_defined = metric == "LogLoss" and len(rows) > 0
    assert (result["value"] is not None) == is_defined
    assert bool(result["drops"]) == is_defined


def test_outputs_are_those_without_an_ablation() -> None:
    step = build_step()
    plain = bind({name: value for name, value in step.items() if name != "ablation"})
    ablated = bind(step)
    assert ablated.observe(ROWS)[0].equals(plain(ROWS))
    assert (plain.observes, ablated.observes, ablated.observes_all) == (False, True, True)
    assert ablated.inputs == {*INPUTS, "label"}
    # No row of an evaluation is scored again and again.
    during_evaluation = ablated.for_evaluation()
    assert during_evaluation is not None
    assert not during_evaluation.observes


def test_inputs_are_permuted_before_the_preprocessing_of_a_run(
    users_run: Path, flights: Path
) -> None:
    table = build_flights(rows=300, seed=5)
    outputs = [{"name": "p", "type": "float32"}]
    model = {"name": "m", "checkpoint": {"uri": str(users_run)}, "outputs": outputs}
    groups = [
        {"name": "far", "columns": ["distance"]},
        {"name": "lists", "columns": ["recent_delays", "carrier"]},
    ]
    step = build_step(model, groups=groups, label="delayed", repeats=2)
    bound = bind(step, table.schema, str(flights / "build"))
    found = measure(bound, [table])
    bits = np.random.Philox(np.random.SeedSequence([0, 1, 300]))
    order = np.random.Generator(bits).permutation(300)
    labels = table["delayed"].to_numpy(zero_copy_only=False)
    place = table.schema.get_field_index("distance")
    permuted = table.set_column(place, "distance", table["distance"].take(order))
    before, after = (
        find_auc(bound(each)["p"].to_numpy(), labels, np.ones(300)) for each in (table, permuted)
    )
    assert found["far"]["drops"][1] == pytest.approx(before - after, abs=1e-4)
    assert found["lists"]["value"] > 0.05


@pytest.mark.parametrize(
    ("ablation", "facts"),
    [
        ({"label": "labels"}, ["label: … 'labels' … 'label'"]),
        ({"label": "word"}, ["label: … 'word' … list<"]),
        ({"weight": "word", "score": "q"}, ["score: … 'q' … p, words", "weight: … 'word'"]),
        ({"score": "words"}, ["score: … 'words' … list<"]),
        (
            {"groups": [{"name": "x", "columns": ["a", "id"]}]},  # a column, but of no input
            ["groups[0].columns: … the model m … 'id' … a, b, sign, unused, word"],
        ),
        ({"groups": [{"name": "x", "columns": ["aa"]}]}, ["groups[0].columns: … 'aa'"]),
    ],
)
def test_columns_that_cannot_be_ablated_are_refused(
    ablation: dict[str, Any], facts: list[str]
) -> None:
    with pytest.raises(ManifestError) as caught:
        bind(build_step(**ablation))
    texts = [str(problem) for problem in caught.value.problems]
    assert_all_told(texts, [f"pipeline[0].predict.ablation.{fact}" for fact in facts])


OUTPUT = {"parquet": {"uri": "out/"}}
PLACE = "spec.pipeline[0].predict.ablation"


@pytest.mark.parametrize(
    ("ablation", "output", "facts"),
    [
        ({"model": "n"}, OUTPUT, f"{PLACE}.model: … 'n' … m"),
        ({"groups": []}, OUTPUT, f"{PLACE}.groups: … 1"),
        ({"groups": GROUPS[:1] * 2}, OUTPUT, f"{PLACE}.groups: … 'a' twice"),
        ({"repeats": 0}, OUTPUT, f"{PLACE}.repeats: … 1 … 0"),
        ({"repeats": 67}, OUTPUT, f"{PLACE}.repeats: … 200 … 67 … 3 groups … 201"),
        ({"metric": "auc"}, OUTPUT, f"{PLACE}.metric: … AUC"),
        ({}, None, "spec.pipeline[0]: predict.ablation … output"),
        (
            {},
            {"mode": "OverwritePartitions", "iceberg": {"catalog": "c", "table": "d.t"}},
            "spec.pipeline[0]: predict.ablation … OverwritePartitions",
        ),
    ],
)
def test_fields_that_cannot_be_ablated_are_refused(
    ablation: dict[str, Any], output: dict[str, Any] | None, facts: str
) -> None:
    pipeline = Pipeline.read_parquet("in.parquet").with_catalog("c", uri="https://catalog")
    document = pipeline.document("m")
    document["spec"]["pipeline"] = [{"predict": build_step(**ablation)}]
    if output is not None:
        document["spec"]["output"] = output
    with pytest.raises(ManifestError) as caught:
        parse_experiment(document)
    assert_all_told([str(problem) for problem in caught.value.problems], [facts])


def build_pipeline(step: dict[str, Any]) -> Pipeline:
    options = {"batch_size": 64, "ablation": step["ablation"]}
    return Pipeline.read_parquet("in.parquet", row_key="id").predict(*step["models"], **options)


def test_a_run_reports_ten_groups_and_reads_once(built_in_run: Path, tmp_path: Path) -> None:
    table = build_flights(rows=400).append_column("id", [np.arange(400)])
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=150)
    columns = ("distance", "carrier", "stops", "legs", "distance")
    groups = [
        {"name": f"{name}-{index}", "columns": [name]}
        for index, name in enumerate([*columns, *columns])
    ]
    outputs = [{"name": "p", "type": "float32"}]
    model = {"name": "m", "checkpoint": {"uri": str(built_in_run)}, "outputs": outputs}
    step = build_step(model, groups=groups, label="delayed")
    finished = (
        build_pipeline(step)
        .filter("id >= 200")
        .write_parquet(
            "out/", columns=["id", "p"], storage_root=str(tmp_path), output=tmp_path / "report"
        )
    )
    assert finished.outcome.kind == "Complete", finished.outcome
    summary = finished.summary
    assert summary.output is not None
    assert summary.output.rows == 200
    found = {measure.name: measure for measure in summary.measures}
    assert list(found) == [group["name"] for group in groups]
    # Rows that a later filter drops are measured too.
    assert {measure.rows for measure in found.values()} == {400}
    assert found["distance-0"].value == found["distance-4"].value == found["distance-9"].value
    assert found["distance-0"].interval is not None
    kept = load_measures(tmp_path / "report").measures
    assert [len(measure.drops) for measure in kept] == [5] * 10
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Importance of inputs of m" in page
    assert page.count("distance-0") >= 2  # the table and the figure
    # A pipeline that measures the same label without an ablation reads the same bytes.
    plain = Pipeline.read_parquet("in.parquet", row_key="id").predict(model, batch_size=64)
    measured = plain.measure({"name": "auc", "auc": {"score": "p", "label": "delayed"}})
    document = measured.filter("id >= 200").document("m")
    document["spec"]["output"] = {"parquet": {"uri": "once/"}, "columns": ["id", "p"]}
    stream = build_plan(parse_experiment(document), str(tmp_path)).main
    chunks = [
        chunk
        for group in stream.groups(0, stream.chunk_rows)
        for chunk in run_group(stream, group, stream.chunk_rows)
    ]
    num_bytes = sum(chunk.header.counts[0].num_bytes for chunk in chunks)
    assert summary.dataset.bytes_read == num_bytes > 0


def test_a_pipeline_that_is_only_looked_at_is_not_ablated(tmp_path: Path) -> None:
    pq.write_table(ROWS.drop_columns([ROW_HASH_COLUMN]), tmp_path / "in.parquet")
    pipeline = build_pipeline(build_step())
    assert pipeline.to_table(str(tmp_path)).num_rows == 400
    assert [step.transform.observes for step in pipeline.plan(str(tmp_path)).main.steps] == [False]


def test_a_cache_table_cannot_come_after_an_ablation(tmp_path: Path) -> None:
    pq.write_table(ROWS.drop_columns([ROW_HASH_COLUMN]), tmp_path / "in.parquet")
    document = build_pipeline(build_step()).with_catalog("c", uri="sqlite://").document("m")
    cache = {"iceberg": {"catalog": "c", "table": "d.t"}, "bucketBy": "id", "buckets": 4}
    document["spec"]["pipeline"].append({"materialize": cache})
    document["spec"]["output"] = OUTPUT
    with pytest.raises(ManifestError) as caught:
        build_plan(parse_experiment(document), str(tmp_path))
    assert_told(str(caught.value), "spec.pipeline[1].materialize … spec.pipeline[0] predict")
