"""The model's own limit: the entrypoint on batches that are already there.

Before it runs `sample`, whose rows the batches are made of; after it `need` compares what the
trainer takes with what a reader makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import torch

from pipeline_runtime.batches import Batch, to_batch, to_device
from pipeline_runtime.config import ExperimentSpec, Training
from pipeline_runtime.errors import TrainingError
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.making.batching import make_ready
from pipeline_runtime.feed.transport.wire import pack, unpack
from pipeline_runtime.formatting import format_bytes
from pipeline_runtime.profiling.clock import summarise
from pipeline_runtime.profiling.document import Trainer
from pipeline_runtime.profiling.replay import Block, Kind, ReplayContext, Stock
from pipeline_runtime.profiling.sample import Taken, join_rows
from pipeline_runtime.training.ranks.worker import train
from pipeline_runtime.training.script import alone

# So many different batches do not fit a CPU's caches, as those of a run do not.
NUM_FROZEN = 64
# What they may take of memory; of wider batches there are fewer.
MAX_FROZEN_BYTES = 1 << 30
# Fewer would replay the same rows out of the caches.
MIN_FROZEN = 4
# A number that few batch sizes share a factor with.
_LAP_ROWS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The trainer's speed with data at hand, and warnings about it."""

    trainer: Trainer
    warnings: tuple[str, ...]


def measure_roofline(
    experiment: ExperimentSpec, taken: Taken, device: torch.device, seconds: float
) -> Roofline:
    """Run the entrypoint or script for about so many seconds, on frozen batches and on chunks.

    Raises:
        TrainingError: it raised, or left before enough steps were measured; or a column has a
            null or value that has no place in its tensor.
    """
    spec = experiment.training
    stock = _build_stock(spec, taken, device, prefetch=experiment.pipeline_options.debug.prefetch)
    context = ReplayContext(spec, taken.stream.output_schema, device, stock, seconds)
    train(spec, context, alone())
    if not context.rounds:
        steps = sum(block.steps for block in context.blocks)
        raise TrainingError(
            f"{spec.program} must take batches until there are no more, but ended after about "
            f"{steps} steps, before anything could be measured; lift its own limit of steps, or "
            "give fewer --seconds"
        )
    trainer = _describe(spec, device, stock, context.rounds)
    return Roofline(trainer=trainer, warnings=tuple(_warnings(stock)))


def _warnings(stock: Stock) -> Iterator[str]:
    if len(stock.frozen) < NUM_FROZEN:
        yield (
            f"{len(stock.frozen)} frozen batches took {format_bytes(MAX_FROZEN_BYTES)}, where "
            f"{NUM_FROZEN} are wanted: the model may have found them in its caches"
        )


def _build_stock(spec: Training, taken: Taken, device: torch.device, *, prefetch: bool) -> Stock:
    """Batches of rows of the sample as a run cuts them, every one different."""
    rows = join_rows(taken)
    is_whole_table = taken.rows == taken.stream.scan.pruning.rows_read
    size = min(spec.batch_size, rows.num_rows) if is_whole_table else spec.batch_size

    def convert(table: pa.Table) -> Batch:
        batch = to_batch(table, weight_column=spec.weight_column, label_column=spec.label_column)
        return to_device(batch, device)

    frozen: list[Batch] = []
    small: list[Batch] = []
    for table in _cut(rows, size):
        frozen.append(convert(table))
        if spec.last_batch == "Pad" and size > 1:  # else the loop never sees another size
            small.append(convert(table.slice(0, size // 2)))
        if len(frozen) >= MIN_FROZEN and _num_bytes(frozen) > MAX_FROZEN_BYTES:
            break
    return Stock(
        frozen=frozen,
        small=small,
        chunks=tuple(_send(chunk, taken, size) for chunk in taken.chunks),
        batch_rows=size,
        request_columns=taken.stream.request_columns,
        prefetch=prefetch,
        sparse=taken.wire.sparse,
    )


def _send(chunk: Chunk, taken: Taken, batch_size: int) -> Chunk:
    """The chunk as a trainer gets it, in memory that nobody writes to, as Ray's object store.

    A loop may write to its batch, which otherwise is a view of the chunk where Arrow allows.
    """
    batching = taken.batching
    made = make_ready(chunk, replace(batching, batch_size=batch_size)) if batching else chunk
    block = pack(made, taken.wire)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as writer:
        writer.write_table(block)
    held = pa.py_buffer(sink.getvalue().to_pybytes())
    [sent] = unpack(pa.ipc.open_stream(held).read_all())
    return sent


def _num_bytes(batches: Sequence[Batch]) -> int:
    return sum(t.numel() * t.element_size() for batch in batches for t in batch.values())


def _cut(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    """Tables of `size` rows, one after another; each lap over the rows begins at another one."""
    for index in range(NUM_FROZEN):
        lap, start = divmod(index * size, rows.num_rows)
        parts, left = [], size
        start = (start + lap * _LAP_ROWS) % rows.num_rows
        while left:
            parts.append(rows.slice(start, left))
            left -= parts[-1].num_rows
            start = 0
        yield pa.concat_tables(parts)


def _describe(
    spec: Training, device: torch.device, stock: Stock, rounds: Sequence[Sequence[Block]]
) -> Trainer:
    blocks = {
        kind: [block for blocks in rounds for block in blocks if block.kind is kind]
        for kind in Kind
    }
    roofline = summarise([block.rows / block.seconds for block in blocks[Kind.FROZEN]])
    intake = summarise([block.rows / block.seconds for block in blocks[Kind.CHUNKS]])
    step = summarise([block.seconds / block.steps for block in blocks[Kind.FROZEN]]).median
    chunks_seconds = sum(block.seconds for block in blocks[Kind.CHUNKS])
    shares = {
        f"{name}_ratio": sum(block.waited[name] for block in blocks[Kind.CHUNKS]) / chunks_seconds
        for name in ("batching", "collate", "transfer")
    }
    return Trainer(
        device=_name(device),
        entrypoint=spec.script or spec.model or spec.entrypoint,
        batch_rows=stock.batch_rows,
        batch_bytes_per_sample=_num_bytes(stock.frozen) / (len(stock.frozen) * stock.batch_rows),
        batches=len(stock.frozen),
        roofline=roofline,
        intake=intake,
        step_seconds=step,
        fixed_seconds=_fixed_seconds(step, blocks[Kind.SMALL]),
        model_ratio=max(0.0, 1 - sum(shares.values())),
        **shares,
    )


def _fixed_seconds(step: float, small: Sequence[Block]) -> float | None:
    """t(B) = fixed + B·rest and t(B/2) = fixed + B/2·rest: fixed = 2·t(B/2) − t(B)."""
    if not small:
        return None
    half = summarise([block.seconds / block.steps for block in small]).median
    return min(step, max(0.0, 2 * half - step))


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
