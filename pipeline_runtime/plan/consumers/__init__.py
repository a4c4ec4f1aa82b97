"""The consumers at the end of a plan's streams; `choose_consumer` finds a manifest's one."""

from __future__ import annotations

from importlib import import_module

from pipeline_runtime.config import ExperimentSpec
from pipeline_runtime.plan.consumers.base import Consumer
from pipeline_runtime.plan.consumers.training import TrainingConsumer

__all__ = ["Consumer", "TrainingConsumer", "choose_consumer"]


def choose_consumer(spec: ExperimentSpec) -> Consumer:
    """Return the consumer that a manifest asks for: a training, unless another section is given."""
    if spec.consumer is None:
        return TrainingConsumer(spec=spec)
    consumer: Consumer = import_module(spec.consumer.module).open_consumer(spec)
    return consumer
