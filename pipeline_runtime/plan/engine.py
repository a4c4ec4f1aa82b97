"""Choose the engine that feeds the trainers and the maker of batches, with reasons."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline_runtime.config.steps import PipelineOptions
from pipeline_runtime.plan.model import Delivery, FeedChoice, Stage


def choose_feed(options: PipelineOptions, stages: Sequence[Stage]) -> FeedChoice:
    """The engine for a stream of these stages; the rows are the same with each."""
    if options.feed == "RayData":
        return FeedChoice(engine="RayData", reason="pipelineOptions.feed: RayData")
    apart = next((stage.steps[0] for stage in stages[1:] if stage.steps), None)
    if apart is not None:
        return FeedChoice(engine="RayData", reason=f"{apart.path} runs in tasks of its own")
    if options.feed == "Readers":
        return FeedChoice(engine="Readers", reason="pipelineOptions.feed: Readers")
    if options.feed == "Threads":
        reason = "pipelineOptions.feed: Threads, on one machine of the trainers"
        return FeedChoice(engine="Readers", reason=reason, may_be_threads=True)
    served = [s for stage in stages for s in stage.steps if s.transform.served]
    if served:
        reason = f"in processes, since {served[0].path} asks inference workers"
        return FeedChoice(engine="Readers", reason=reason)
    python = [s for stage in stages for s in stage.steps if s.transform.calls_user_code]
    if python:
        reason = f"in processes, since {python[0].path} calls Python"
        return FeedChoice(engine="Readers", reason=reason)
    reason = "on one machine as threads of the trainers, or processes if the only one binds"
    return FeedChoice(engine="Readers", reason=reason, may_be_threads=True, may_switch=True)


def resolve_order(options: PipelineOptions, *, default: bool) -> bool:
    """Return whether the seed fixes the order of batches, given what holds if it is not set."""
    return default if options.preserve_order is None else options.preserve_order


# A smaller batch has more bytes of layout than of rows.
_MIN_READY_ROWS = 16


def choose_delivery(
    options: PipelineOptions, feed: FeedChoice, batch_size: int, *, preserve_order: bool
) -> Delivery:
    """Choose whether readers make batches, and how they send them; rows stay the same."""
    is_ready, reason = True, "batches are made by the data workers"
    if not options.debug.ready_batches:
        is_ready, reason = False, "pipelineOptions.debug.readyBatches: false"
    elif feed.engine == "RayData":
        is_ready, reason = False, "the feed is Ray Data"
    elif batch_size < _MIN_READY_ROWS:
        is_ready, reason = False, f"batches of fewer than {_MIN_READY_ROWS} rows"
    elif preserve_order:
        is_ready, reason = False, "with preserveOrder they run on from chunk to chunk"
    return Delivery(
        is_ready=is_ready,
        reason=reason,
        sparse=options.debug.sparse,
        compression=options.compression,
        batched_calls=options.debug.batched_calls,
        shared_memory=options.debug.shared_memory,
    )
