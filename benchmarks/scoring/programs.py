"""The ways to score a table. Each yields Arrow tables with all columns and the scores.

Lastmile and Ray Data use all cores; the DataLoader has a worker for each.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.harness.machine import num_cores, thread_cpu_seconds
from benchmarks.scoring.tables import INPUTS, KEY, MICROS, Clock, Program, Scored, load, name_score
from pipeline_runtime.config import InferenceWorkers, parse_experiment
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.local.thread_readers import ThreadReaders
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.pipeline import Pipeline
from pipeline_runtime.plan import Plan, StreamPlan, build_plan

# Metrics of Lastmile alone, as `child.measure` has them.
STEP: Final = "stepMicrosPerRow"  # of the step `predict`
SERVER: Final = "serverMicrosPerRow"  # CPU time of inference workers
ARROW_BYTES: Final = "arrowBytesPerRow"  # of the columns that were read, as a run reports them
_LABEL: Final = "label"
_SERVER_TITLE: Final = "ray::ModelServer"
_IDLE_SECONDS: Final = 2.0
_ROLE: Final = "output"
_GROUP: Final = "servers"
_BATCH_ROWS: Final = 4096  # Ray Data has 1,024 by default
NumpyBatch = dict[str, npt.NDArray[Any]]
_PLACED: list[Any] = []


def make_plan(scored: Scored, group: str | None = None) -> Plan:
    """Return the plan of a job as users write it.

    Args:
        group: of the inference workers that call the models; None: the data workers do.
    """
    models = [
        {
            "name": f"model-{index}",
            "function": "benchmarks.scoring.tables:load",
            "options": {"seed": index},
            "inputs": list(INPUTS),
            "outputs": [{"name": name, "type": "float32"}],
            **({"worker_group": group} if group else {}),
        }
        for index, name in enumerate(scored.scores)
    ]
    pipeline = Pipeline.read_parquet("rows/", row_key=KEY)
    if scored.num_groups:
        pipeline = pipeline.derive(**{_LABEL: "x0 + x1 > 0"})
    if models:
        pipeline = pipeline.predict(*models, batch_size=_BATCH_ROWS, **_build_ablation(scored))
    document = pipeline.document("scoring")
    document["spec"]["output"] = {"parquet": {"uri": "scored/"}}
    if scored.is_narrow:
        document["spec"]["output"]["columns"] = [KEY, *scored.scores]
    if group:
        document["spec"]["inferenceWorkers"] = [{"name": group, "gpusPerReplica": 0}]
    return build_plan(parse_experiment(document), scored.folder)


def _build_ablation(scored: Scored) -> dict[str, Any]:
    """Return the option for the importance of single inputs, then of pairs of them."""
    if not scored.num_groups:
        return {}
    columns = [*combinations(INPUTS, 1), *combinations(INPUTS, 2)][: scored.num_groups]
    groups = [{"name": "-".join(names), "columns": list(names)} for names in columns]
    ablation = {"model": "model-0", "label": _LABEL, "groups": groups, "repeats": 1}
    return {"ablation": ablation}


def lastmile(scored: Scored, notes: dict[str, float]) -> Iterator[pa.Table]:
    """Score by the feed of a run, whose readers are threads of this process."""
    yield from _read(make_plan(scored).main, notes)


def _read(rows: StreamPlan, notes: dict[str, float]) -> Iterator[pa.Table]:
    streams = {_ROLE: Stream(plan=rows, chunk_rows=rows.chunk_rows)}
    readers = ThreadReaders(streams=streams, num_threads=num_cores())
    groups = rows.groups(0, rows.chunk_rows)
    feed = readers.open(_ROLE, 0, groups, in_order=False)
    notes[STEP], notes[ARROW_BYTES] = 0.0, 0.0
    for chunk in feed.chunks(Waited()):
        assert isinstance(chunk, Chunk)
        notes[STEP] += chunk.header.counts[-1].seconds
        notes[ARROW_BYTES] += chunk.header.counts[0].num_bytes
        yield chunk.table


def models_alone(scored: Scored, notes: dict[str, float]) -> Iterator[pa.Table]:
    """Call the models on batches that are tensors already; nothing else is counted."""
    table = pq.read_table(scored.table, columns=[KEY, *INPUTS]).combine_chunks()
    tensors = {name: torch.from_numpy(table[name].to_numpy().copy()) for name in INPUTS}
    starts = range(0, table.num_rows, _BATCH_ROWS)
    models = load_all(scored.num_models)
    clock = Clock()
    found = {
        name: [model({n: v[at : at + _BATCH_ROWS] for n, v in tensors.items()}) for at in starts]
        for name, model in models.items()
    }
    notes |= clock.read()
    for name, scores in found.items():
        table = table.append_column(name, pa.array(torch.cat(scores).numpy()))
    yield table


def on_inference_workers(scored: Scored, notes: dict[str, float]) -> Iterator[pa.Table]:
    """Score by models on inference workers, which stay there; the note has their CPU time.

    What they take while nothing is scored does not count: a job with more columns takes longer.
    """
    read_seconds = functools.partial(thread_cpu_seconds, os.getpid(), _SERVER_TITLE)
    rows = _place(scored)
    clock, before = Clock(), read_seconds()
    yield from _read(rows, notes)
    notes |= clock.read()
    used, before = read_seconds() - before, read_seconds()
    time.sleep(_IDLE_SECONDS)
    idle_rate = (read_seconds() - before) / _IDLE_SECONDS
    notes[SERVER] = used - idle_rate * notes[MICROS]


@functools.cache
def _place(scored: Scored) -> StreamPlan:
    from pipeline_runtime.feed.over_ray.model_pool import PlacedModels

    group = InferenceWorkers(name=_GROUP, gpus_per_replica=0)
    placed = PlacedModels(
        [group], is_cluster=False, on_note=lambda _: None, on_reading=lambda _, __: None
    )
    _PLACED.append(placed)  # the servers end with it
    [stream] = placed.connect(make_plan(scored, _GROUP).streams).values()
    return stream


def ray_default(scored: Scored, _: dict[str, float]) -> Iterator[pa.Table]:
    """Score by `map_batches` as in Ray Data's documentation: batches of NumPy arrays."""
    return _score_by_ray(scored, score_numpy)


def ray_arrow(scored: Scored, _: dict[str, float]) -> Iterator[pa.Table]:
    """Score by `map_batches` on Arrow tables, without a copy, tuned by hand."""
    return _score_by_ray(
        scored,
        score_arrow,
        batch_format="pyarrow",
        batch_size=_BATCH_ROWS,
        zero_copy_batch=True,
    )


def _score_by_ray(
    scored: Scored, function: Callable[..., Any], **options: Any
) -> Iterator[pa.Table]:
    import ray.data

    dataset = ray.data.read_parquet(scored.table)
    dataset = dataset.map_batches(function, fn_args=(scored.num_models,), **options)
    yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow")


def torch_loop(scored: Scored, _: dict[str, float]) -> Iterator[pa.Table]:
    """Score in a loop over a DataLoader, whose workers read row groups with pyarrow."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        RowGroups(scored),
        batch_size=None,
        num_workers=num_cores(),
        multiprocessing_context="fork",
    )
    for stored in loader:
        yield score_arrow(pa.ipc.open_stream(stored).read_all(), scored.num_models)


PROGRAMS: Final[Mapping[str, Program]] = {
    "lastmile": lastmile,
    "Ray Data, default": ray_default,
    "Ray Data, pyarrow": ray_arrow,
    "DataLoader": torch_loop,
    "models alone": models_alone,
    "inference workers": on_inference_workers,
}
COMPARED: Final = ("lastmile", "Ray Data, default", "Ray Data, pyarrow", "DataLoader")
WITH_PROCESSES: Final = COMPARED[1:]
ON_RAY: Final = (*WITH_PROCESSES[:2], "inference workers", "ray.data.llm")


def score_numpy(batch: NumpyBatch, num_models: int) -> NumpyBatch:
    """Return a batch of NumPy arrays with the scores."""
    tensors = {name: torch.from_numpy(np.array(batch[name])) for name in INPUTS}
    return batch | {name: model(tensors).numpy() for name, model in load_all(num_models).items()}


def score_arrow(table: pa.Table, num_models: int) -> pa.Table:
    """Return an Arrow table with the scores; other columns keep their buffers."""
    tensors = {name: torch.from_numpy(table[name].to_numpy().copy()) for name in INPUTS}
    for name, model in load_all(num_models).items():
        table = table.append_column(name, pa.array(model(tensors).numpy()))
    return table


@functools.cache
def load_all(num_models: int) -> dict[str, Callable[[Any], torch.Tensor]]:
    """Return the models by the column that each adds, once in each process."""
    torch.set_num_threads(1)
    return {name_score(index): load(index) for index in range(num_models)}


class RowGroups(torch.utils.data.IterableDataset[Any]):
    """Row groups as serialized Arrow tables; tensors cannot hold strings and nulls."""

    def __init__(self, scored: Scored) -> None:
        self._folder = scored.table

    def __iter__(self) -> Iterator[bytes]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        paths = pq.ParquetDataset(self._folder).files
        groups = [
            (path, group) for path in paths for group in range(pq.ParquetFile(path).num_row_groups)
        ]
        for path, group in groups[worker.id :: worker.num_workers]:
            table = pq.ParquetFile(path).read_row_group(group, use_threads=False)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            yield sink.getvalue().to_pybytes()
