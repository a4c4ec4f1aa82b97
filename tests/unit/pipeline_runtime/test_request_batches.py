"""Batches that carry a request's columns once: the same rows, and the same model from them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from pipeline_runtime import Pipeline
from pipeline_runtime.arrays.conversion import check_tensor_schema
from pipeline_runtime.batches import (
    REQUEST_INDEX,
    Batch,
    empty_batch,
)
from pipeline_runtime.config import ParquetSource
from pipeline_runtime.convert import ConversionOptions, convert_table
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Batches, Chunk
from pipeline_runtime.feed.making.batching import Batching, make_ready
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.feed.transport.wire import Wire, pack, unpack
from pipeline_runtime.plan import build_plan, explain, plan_groups
from pipeline_runtime.plan.model import StreamPlan
from pipeline_runtime.request_batches import expand
from pipeline_runtime.sources import open_location
from pipeline_runtime.sources.parquet import open_parquet
from pipeline_runtime.training.collating import Collator
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.ranking.features import choose_features, parse_config
from pipeline_runtime.training.ranking.network import RankingModel
from pipeline_runtime.training.stream import BatchStream, Cutting

SHARED = ("user", "age", "history", "padded")
CHUNK_ROWS, BATCH_SIZE = 90, 32
COLUMNS = ["item", "score", "clicked", "country", "age", "history", "padded"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`flat.parquet` and `nested`, 60 requests of 3 to 12 rows; `alone.parquet`, of one."""
    path = tmp_path_factory.mktemp("requests")
    draw = random.Random(2)
    rows: list[dict[str, Any]] = []
    for request in range(60):
        history = [draw.randrange(50) for _ in range(draw.choice([0, 1, 4]))]
        user = {
            "request": request if request % 9 else None,
            "user": draw.randrange(20),
            "age": draw.random(),
            "history": None if request % 13 == 0 else history,
            "padded": [request, 0, 7],
        }
        for _ in range(draw.randint(3, 12)):
            item = {"id": len(rows), "item": draw.randrange(50), "score": draw.random()}
            rows.append(item | {"clicked": draw.random() < 0.4} | user)
    pq.write_table(pa.Table.from_pylist(rows), path / "flat.parquet", row_group_size=70)
    alone = [row | {"request": row["id"]} for row in rows]
    pq.write_table(pa.Table.from_pylist(alone), path / "alone.parquet", row_group_size=70)
    convert_table(
        open_parquet(ParquetSource(uri=str(path / "flat.parquet")), ""),
        open_location(str(path / "nested")),
        ConversionOptions(request_key="request", request_columns=SHARED, has_row_key=True),
    )
    return str(path)


def pipeline_of(uri: str) -> Pipeline:
    return (
        Pipeline.read_parquet(uri, row_key="id", request_key="request", request_columns=SHARED)
        .filter("item % 5 != 0 and age > 0.1")
        .derive(country="user % 7")
        .truncate("history", length=3)
        .pad_sequence("padded", length=4)
    )


def plan_of(uri: str, shuffle: str = "none", **training: Any) -> StreamPlan:
    experiment = pipeline_of(uri).experiment(
        "requests",
        columns=COLUMNS,
        labelColumn="clicked",
        shuffle={"unit": shuffle, "windowRows": CHUNK_ROWS},
        **training,
    )
    return build_plan(experiment, "").training


def batches_of(plan: StreamPlan, way: str = "rows") -> Iterator[Batch]:
    """Batches as a trainer gets them: it makes them of rows, or readers do, and may send them."""
    groups = plan_groups(
        plan.scan.units, seed=0, epoch=0, shuffle=plan.shuffle, chunk_rows=CHUNK_ROWS
    )
    batching = Batching(
        batch_size=BATCH_SIZE,
        weight_column=None,
        label_column="clicked",
        once=plan.request_columns,
    )

    def bring(chunk: Chunk) -> Chunk:
        if way == "rows":
            return chunk
        made = make_ready(chunk, batching)
        return made if way == "made" else unpack(pack(made, Wire(sparse=True, codec="lz4")))[0]

    stream = BatchStream(
        chunks=(bring(chunk) for group in groups for chunk in read_group(plan, group, CHUNK_ROWS)),
        groups=groups,
        cutting=Cutting(batch_size=BATCH_SIZE, last_batch="Pad"),
        position=Position(),
        waited=Waited(),
    )
    collator = Collator(
        torch.device("cpu"), weight_column=None, label_column="clicked", ahead=False
    )
    for rows in stream.epoch_rows(0):
        assert rows is not None
        yield collator.make(rows, None, Waited())


@pytest.mark.parametrize("way", ["rows", "made", "sent"])
@pytest.mark.parametrize("shuffle", ["none", "row", "request"])
@pytest.mark.parametrize("table", ["flat.parquet", "nested"])
def test_batches_with_requests_once_expand_to_those_with_a_value_a_row(
    folder: str, table: str, shuffle: str, way: str
) -> None:
    plan = plan_of(f"{folder}/{table}", shuffle, deduplicated=True)
    assert plan.request_columns == ("country", "age", "history", "padded")
    plain = plan_of(f"{folder}/{table}", shuffle, deduplicated=False)
    expected = list(batches_of(plain))
    batches = list(batches_of(plan, way))
    assert len(batches) == len(expected)
    for batch, flat in zip(batches, expected, strict=True):
        index = batch[REQUEST_INDEX]
        assert index.unique().tolist() == list(range(len(batch["age"])))  # none without a row
        assert len(batch["padded"]) == len(batch["history.offsets"]) - 1 == len(batch["country"])
        expanded = expand(batch, plan.request_columns)
        assert expanded.keys() - {REQUEST_INDEX} == flat.keys()
        for name, tensor in flat.items():
            assert torch.equal(expanded[name], tensor), name
    if shuffle != "row":
        assert sum(len(batch["age"]) for batch in batches) < plan.scan.pruning.rows_read / 2


@pytest.mark.parametrize("way", ["rows", "made", "sent"])
@pytest.mark.parametrize("table", ["flat.parquet", "nested", "alone.parquet"])
def test_what_a_loop_writes_to_a_batch_is_not_in_the_next(
    folder: str, table: str, way: str
) -> None:
    plan = plan_of(f"{folder}/{table}", deduplicated=True)
    expected = list(batches_of(plan))
    got = []
    for batch in batches_of(plan, way):
        got.append({name: tensor.clone() for name, tensor in batch.items()})
        for tensor in batch.values():
            tensor.zero_()
    for mine, theirs in zip(got, expected, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_where_requests_do_not_pay_batches_are_not_copied_for_them(folder: str) -> None:
    plan = plan_of(f"{folder}/alone.parquet", deduplicated=True)
    batching = Batching(
        batch_size=BATCH_SIZE, weight_column=None, label_column=None, once=plan.request_columns
    )
    [group, *_] = plan_groups(
        plan.scan.units, seed=0, epoch=0, shuffle=plan.shuffle, chunk_rows=CHUNK_ROWS
    )
    [chunk] = read_group(plan, group, CHUNK_ROWS)
    made = make_ready(chunk, batching).rows
    assert isinstance(made, Batches)
    for index in range(len(made.batches)):
        arrays = made.arrays(index)
        assert len(arrays["padded"]) == len(arrays[REQUEST_INDEX])
        assert arrays["padded"].flags.writeable  # a loop may have it as it is


def test_entrypoints_get_a_value_a_row_unless_they_ask(folder: str) -> None:
    uri = f"{folder}/nested"
    assert plan_of(uri).request_columns  # the built-in one
    assert not plan_of(uri, entrypoint="my_model:train").request_columns
    assert plan_of(uri, entrypoint="my_model:train", deduplicated=True).request_columns
    # The key is equal within a request without being declared so.
    keyed = pipeline_of(f"{folder}/flat.parquet").experiment("requests", columns=["request", "age"])
    assert build_plan(keyed, "").training.request_columns == ("request", "age")
    # A step that takes columns one by one leaves each where it stands, a cast of both kinds too.
    apart = pipeline_of(f"{folder}/flat.parquet").cast({"age": "float64", "item": "int32"})
    chosen = apart.experiment("requests", columns=["age", "item"])
    assert build_plan(chosen, "").training.request_columns == ("age",)
    # A nested table needs no declaration, and holds more once than this one names.
    narrow = Pipeline.read_parquet(uri, request_key="request", request_columns=["age"])
    plan = build_plan(narrow.experiment("requests", columns=["age", "history", "item"]), "")
    assert plan.training.request_columns == ("age", "history")
    apart = pipeline_of(uri).with_options(fusion=False).experiment("requests", columns=COLUMNS)
    assert build_plan(apart, "").training.request_columns == ()
    text = explain(build_plan(pipeline_of(uri).experiment("requests", columns=COLUMNS), ""))
    [batches] = [line for line in text.splitlines() if "country, age, history, padded" in line]
    assert "7 columns" in batches


@pytest.mark.parametrize("asked", [True, False, None])
def test_batches_without_anything_once_are_warned_of_where_they_were_asked_for(
    folder: str, asked: bool | None
) -> None:
    flat = Pipeline.read_parquet(f"{folder}/flat.parquet", row_key="id")
    plan = build_plan(flat.experiment("requests", columns=["age"], deduplicated=asked), "")
    assert ["training.deduplicated" in warning for warning in plan.warnings] == [True] * bool(asked)


def test_a_rank_without_rows_gets_one_that_weighs_nothing(folder: str) -> None:
    plan = plan_of(f"{folder}/nested")
    empty = expand(empty_batch(plan.output_schema, plan.request_columns), plan.request_columns)
    flat = empty_batch(plan.output_schema)
    assert {name: empty[name].tolist() for name in flat} == {n: t.tolist() for n, t in flat.items()}


def test_a_column_that_would_be_taken_for_the_index_is_refused() -> None:
    refused = check_tensor_schema(pa.schema({REQUEST_INDEX: pa.int64()}))
    assert [column for column, _ in refused] == [REQUEST_INDEX]


@pytest.mark.parametrize("target", [None, "item"])
def test_the_model_and_its_gradients_are_those_of_the_flat_batches(
    folder: str, target: str | None
) -> None:
    plan = plan_of(f"{folder}/nested")
    config = parse_config(
        {
            "hashSize": 64,
            "embeddingDim": 8,
            "hidden": [16],
            "dropout": 0.0,
            "sequences": [{"column": "history", "target": target}, {"column": "padded"}],
        }
    )
    features = choose_features(config, plan.output_schema, label="clicked", weight=None)

    def trained(batches: Iterator[Batch], request_columns: tuple[str, ...]) -> RankingModel:
        torch.manual_seed(0)
        model = RankingModel(features, config, request_columns)
        for given in batches:
            batch = model.by_row(given)
            model.scaler.observe(batch, lambda tensor: tensor)
            logits_B = model(batch)
            labels_B = batch["clicked"].float()
            nn.functional.binary_cross_entropy_with_logits(logits_B, labels_B).backward()
        return model

    once = trained(batches_of(plan), plan.request_columns)
    flat = trained(batches_of(plan_of(f"{folder}/nested", deduplicated=False)), ())
    torch.testing.assert_close(once.scaler.moments, flat.scaler.moments)
    for (name, mine), theirs in zip(once.named_parameters(), flat.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=name)
