"""The section of the manifest, and a manifest that has it."""

from __future__ import annotations

from typing import ClassVar

from pipeline_runtime.config import DatasetExperiment, ExperimentSpec
from pipeline_runtime.config.base import Column, ConsumerModel


class Sum(ConsumerModel):
    """The sum of a column."""

    module: ClassVar[str] = "toy_consumer.planning"

    column: Column


class ToySpec(ExperimentSpec):
    """A spec with this section."""

    sum: Sum | None = None


class ToyExperiment(DatasetExperiment):
    """An experiment with such a spec."""

    spec: ToySpec
