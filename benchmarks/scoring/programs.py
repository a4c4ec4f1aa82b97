"""The ways to score a table. Each yields Arrow tables with all columns and the scores.

Lastmile and Ray Data use all cores; the DataLoader has a worker for each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.harness.machine import num_cores
from benchmarks.scoring.tables import INPUTS, KEY, Scored, load, name_score
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.local.thread_readers import ThreadReaders
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.pipeline import Pipeline

STEP_SECONDS: Final = "stepSeconds"  # CPU seconds of the step `predict`, of Lastmile alone
_ROLE: Final = "output"
_BATCH_ROWS: Final = 4096  # Ray Data has 1,024 by default
NumpyBatch = dict[str, npt.NDArray[Any]]


def build_pipeline(scored: Scored) -> Pipeline:
    """Return the pipeline as users write it."""
    models = [
        {
            "name": f"model-{index}",
            "function": "benchmarks.scoring.tables:load",
            "options": {"seed": index},
            "inputs": list(INPUTS),
            "outputs": [{"name": name, "type": "float32"}],
        }
        for index, name in enumerate(scored.scores)
    ]
    return Pipeline.read_parquet("rows/", row_key=KEY).predict(*models, batch_size=_BATCH_ROWS)


def lastmile(scored: Scored, notes: dict[str, float]) -> Iterator[pa.Table]:
    """Score by the feed of a run, whose readers are threads of this process."""
    rows = build_pipeline(scored).plan(scored.folder).training
    streams = {_ROLE: Stream(plan=rows, chunk_rows=rows.chunk_rows)}
    readers = ThreadReaders(streams=streams, num_threads=num_cores())
    groups = rows.groups(0, rows.chunk_rows)
    feed = readers.open(_ROLE, 0, groups, in_order=False)
    for chunk in feed.chunks(Waited()):
        assert isinstance(chunk, Chunk)
        notes[STEP_SECONDS] = notes.get(STEP_SECONDS, 0.0) + chunk.header.counts[-1].seconds
        yield chunk.table


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


PROGRAMS: Final[Mapping[str, Callable[[Scored, dict[str, float]], Iterator[pa.Table]]]] = {
    "lastmile": lastmile,
    "Ray Data, default": ray_default,
    "Ray Data, pyarrow": ray_arrow,
    "DataLoader": torch_loop,
}


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
