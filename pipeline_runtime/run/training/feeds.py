"""Inputs of trainers: streams of rows, their transport, and the workers' plan."""

from __future__ import annotations

from copy import deepcopy

from pipeline_runtime.feed.base import FeedSource
from pipeline_runtime.feed.making.batching import batching_of
from pipeline_runtime.feed.making.maker import Stream
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
        prefetch=run.plan.prefetch,
        sparse=run.plan.delivery.sparse,
    )
