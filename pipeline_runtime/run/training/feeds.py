"""Inputs of trainers: streams of rows, their transport, and the workers' plan."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from pipeline_runtime.config import Training
from pipeline_runtime.feed.base import FeedSource
from pipeline_runtime.feed.making.batching import Batching, batching_of
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.plan.model import Delivery
from pipeline_runtime.run.training.evaluation_file import locate_parts
from pipeline_runtime.run.training.prepare import PreparedRun
from pipeline_runtime.training.ranks.worker import WorkerPlan


def build_streams(run: PreparedRun) -> dict[str, Stream]:
    """Return the streams that readers make chunks of, by their role."""
    plans = {"training": run.plan.training, "evaluation": run.plan.evaluation}
    training = run.experiment.spec.training
    return {
        role: Stream(
            plan=plan,
            chunk_rows=run.chunk_rows,
            batching=batching_of(run.plan.delivery, plan, training),
        )
        for role, plan in plans.items()
        if plan is not None
    }


def build_thread_streams(run: PreparedRun) -> dict[str, Stream]:
    """Return the streams for readers that are threads of their trainer.

    They convert the rows even if the order of batches is fixed, when only the trainer can cut them:
    it takes views of their arrays. Batches of an evaluation begin with a chunk in either case.
    """
    streams, spec = build_streams(run), run.experiment.spec
    if not (run.plan.preserve_order and spec.pipeline_options.debug.ready_batches):
        return streams
    delivery = replace(run.plan.delivery, is_ready=True)
    return {
        role: replace(stream, batching=_convert(delivery, stream, spec.training, role))
        for role, stream in streams.items()
    }


def _convert(delivery: Delivery, stream: Stream, training: Training, role: str) -> Batching | None:
    batching = batching_of(delivery, stream.plan, training)
    return batching and replace(batching, cuts=role == "evaluation")


def build_worker_plan(run: PreparedRun, feeds: FeedSource) -> WorkerPlan:
    """Return the input of every rank."""
    return WorkerPlan(
        training=run.experiment.spec.training,
        stream=run.plan.training,
        feeds=feeds,
        groups=run.groups,
        positions=deepcopy(run.positions),  # a rank in this process moves on in its own
        evaluation=run.plan.evaluation,
        evaluation_groups=run.evaluation_groups,
        store=run.store,
        identity=run.identity,
        resume=run.resume,
        function=run.function,
        evaluated_rows=locate_parts(run.run_location) if run.plan.evaluation else None,
        prefetch=run.plan.prefetch,
        sparse=run.plan.delivery.sparse,
    )
