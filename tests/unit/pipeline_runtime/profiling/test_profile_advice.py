"""The advice of a profile: a real plan, with given figures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_told

from pipeline_runtime.config import parse_experiment
from pipeline_runtime.pipeline import Pipeline
from pipeline_runtime.plan import build_plan
from pipeline_runtime.profiling.advice import Findings, advise
from pipeline_runtime.profiling.document import (
    Advice,
    Binding,
    Column,
    Measured,
    Reading,
    StepCost,
    Trainer,
)
from pipeline_runtime.profiling.need import plan_need


def measured(median: float) -> Measured:
    return Measured(median=median, low=median, high=median, times=3)


TRAINER = Trainer(
    device="cpu",
    entrypoint="a:b",
    batch_rows=8,
    batch_bytes_per_sample=4,
    batches=64,
    roofline=measured(1000),
    intake=measured(1000),
    step_seconds=0.1,
    fixed_seconds=0.0,
    model_ratio=1.0,
    batching_ratio=0.0,
    collate_ratio=0.0,
    transfer_ratio=0.0,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rows = {"x": [1, 2, 3, 4], "y": [1.0, 2.0, 3.0, 4.0], "items": [[1], [2, 3], [], [4]]}
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "t" / "a.parquet")
    return tmp_path


def find(
    root: Path,
    pipeline: Pipeline,
    costs: Sequence[tuple[int, float]] = (),
    *,
    reader: float = 100.0,
    unused: Sequence[str] = (),
    workers: tuple[int, int] = (1, 20),
    **training: Any,
) -> Findings:
    """Findings of a plan whose steps give out so many rows of 100, for such shares of the time."""
    document = pipeline.document("advice", **training)
    document["spec"]["dataWorkers"] = {
        "minReplicas": workers[0],
        "maxReplicas": workers[1],
        "resources": {"requests": {"cpu": 1}},
    }
    experiment = parse_experiment(document)
    plan = build_plan(experiment, str(root))
    need = plan_need(experiment.spec, TRAINER.intake, measured(reader))
    return Findings(
        spec=experiment.spec,
        plan=plan,
        trainer=TRAINER,
        reading=Reading(
            columns=1,
            rows_per_second=measured(1),
            waiting_ratio=0,
            stored_bytes_per_row=1,
            decoded_bytes_per_row=1,
        ),
        steps=tuple(_steps([step.kind for step in plan.training.steps], costs)),
        columns=tuple(
            Column(name=name, bytes_ratio=0.25, is_trained_on=name not in unused)
            for name in plan.training.read_columns
        ),
        need=need,
        binding=Binding(what="model", samples_per_second=1, reason=""),
    )


def _steps(kinds: Sequence[str], costs: Sequence[tuple[int, float]]) -> list[StepCost]:
    given = [*(costs or [(100, 0.0)] * len(kinds))]
    rest = 1 - sum(share for _, share in given)
    parts = [("read", 100, rest / 2), *((k, *c) for k, c in zip(kinds, given, strict=True))]
    parts.append(("handOver", parts[-1][1], rest / 2))
    return [
        StepCost(
            kind=kind,
            path="",
            label="",
            rows_in=parts[max(0, index - 1)][1],
            rows_out=rows,
            microseconds_per_row=measured(1),
            share=share,
            bytes_per_row=8,
        )
        for index, (kind, rows, share) in enumerate(parts)
    ]


def texts(found: Findings, field: str) -> list[str]:
    given: tuple[Advice, ...] = advise(found)
    return [advice.text.replace("\u00a0", " ") for advice in given if advice.field == field]


TABLE = Pipeline.read_parquet("t/")


@pytest.mark.parametrize(
    ("workers", "field", "text"),
    [
        pytest.param((1, 8), "maxReplicas", "… 11 … 8 … 20 %", id="more than there may be"),
        pytest.param((4, 20), "minReplicas", "… 60 %", id="more than at the start"),
        pytest.param((14, 20), "minReplicas", "… 11 … 3 … 14", id="fewer than there must be"),
    ],
)
def test_bounds_of_the_data_workers(
    root: Path, workers: tuple[int, int], field: str, text: str
) -> None:
    [found] = texts(find(root, TABLE, workers=workers), f"spec.dataWorkers.{field}")
    assert_told(found, text)


def test_bounds_that_fit_need_no_word(root: Path) -> None:
    assert advise(find(root, TABLE, workers=(11, 20))) == ()


def test_a_step_that_drops_rows_goes_before_a_costly_one(root: Path) -> None:
    pipeline = TABLE.pad_sequence("items", length=3).derive(w="y * 2").filter("x > 1 and x % 2 = 0")
    found = find(root, pipeline, [(100, 0.5), (100, 0.1), (25, 0.05)])
    [text] = texts(found, "spec.pipeline[2]")
    assert_told(text, "… filter … 25 % … spec.pipeline[0] … padSequence … 45 %")


@pytest.mark.parametrize(
    ("pipeline", "costs"),
    [
        pytest.param(
            *(TABLE.derive(w="y * 2").filter("w > 2"), [(100, 0.8), (25, 0.05)]),
            id="what the costly one makes is read",
        ),
        pytest.param(
            TABLE.downsample(50, weight_column="w")
            .weight("w", by="2.0")
            .downsample(50, weight_column="w"),
            [(50, 0.05), (50, 0.8), (25, 0.05)],
            id="both change a column",
        ),
        pytest.param(
            *(TABLE.sample(50).filter("x > 1"), [(50, 0.8), (25, 0.05)]),
            id="the costly one drops rows itself",
        ),
        pytest.param(
            *(TABLE.rename({"x": "k"}).filter("k > 1"), [(100, 0.8), (25, 0.05)]),
            id="the column has another name there",
        ),
        pytest.param(
            *(TABLE.derive(w="y * 2").filter("x > 1"), [(100, 0.05), (25, 0.05)]),
            id="nothing to speak of is saved",
        ),
    ],
)
def test_a_step_stays_where(root: Path, pipeline: Pipeline, costs: list[tuple[int, float]]) -> None:
    found = find(root, pipeline, costs, workers=(11, 20))
    assert [advice.field for advice in advise(found) if "pipeline" in advice.field] == []


def test_columns_that_reach_nothing_are_named(root: Path) -> None:
    [text] = texts(find(root, TABLE, unused=["y", "items"]), "spec.training.columns")
    assert_told(text, "… y, items … 50 %")


def test_an_optimisation_that_is_off_is_named(root: Path) -> None:
    found = find(root, TABLE.with_options(kernels=False))
    [text] = texts(found, "spec.pipelineOptions.debug.kernels")
    assert "--set pipelineOptions.debug.kernels=true" in text


def test_a_step_that_costs_much_whatever_its_size_wants_larger_batches(root: Path) -> None:
    found = replace(find(root, TABLE), trainer=TRAINER.model_copy(update={"fixed_seconds": 0.05}))
    [text] = texts(found, "spec.training.batchSize")
    assert_told(text, "… 50 ms … 50 % … 8 samples")


def test_nested_files_are_advised_where_requests_are_declared(root: Path) -> None:
    pipeline = Pipeline.read_parquet("t/", request_key="x")
    [text] = texts(find(root, pipeline), "spec.dataset")
    assert "lastmile convert" in text


def test_rows_that_cost_little_need_no_word_but_of_bounds(root: Path) -> None:
    """With one data worker at most, cheaper steps save nothing."""
    pipeline = TABLE.pad_sequence("items", length=3).filter("x > 1 and x % 2 = 0")
    found = find(root, pipeline, [(100, 0.8), (25, 0.05)], reader=10_000.0)
    assert advise(found) == ()
