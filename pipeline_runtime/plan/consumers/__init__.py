"""The consumers at the end of a plan's streams; `choose_consumer` finds a manifest's one."""

from __future__ import annotations

from pipeline_runtime.config import ExperimentSpec
from pipeline_runtime.plan.consumers.base import Consumer
from pipeline_runtime.plan.consumers.output import OutputConsumer
from pipeline_runtime.plan.consumers.training import TrainingConsumer

__all__ = ["Consumer", "OutputConsumer", "TrainingConsumer", "choose_consumer"]


def choose_consumer(spec: ExperimentSpec) -> Consumer:
    """Return the consumer that a manifest asks for: a training, unless it has an output."""
    return TrainingConsumer(spec=spec) if spec.output is None else OutputConsumer(spec=spec)
