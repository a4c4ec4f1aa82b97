"""The result of a comparison: the models of `lastmile compare --json`, which the pages show too.

Lists of values have one for each variant, in their order. Differences are of a variant less the
first one. `comparing` builds these models; `terminal` and `page` run after it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline_runtime.report.files.summary import Count, SummaryModel, UtcTime

Verdict = Literal["Better", "Worse", "Equal", "Inconclusive"]


class ComparedRun(SummaryModel):
    """A run of a variant."""

    experiment: str = Field(description="Name of the experiment.")
    run: str = Field(description="Name of the run's folder.")
    folder: str = Field(description="Folder or URI from which it was read.")
    phase: str = Field(description="How it ended: `Complete`, `Failed`, `Interrupted`.")
    started_at: UtcTime | None = Field(description="When it started.")
    seed: int | None = Field(description="`training.seed`.")
    evaluation_rows: Count | None = Field(
        description="Rows of its evaluation.parquet; null: it has none."
    )


class ComparedVariant(SummaryModel):
    """A run and its repeats with other seeds."""

    label: str = Field(description="Letter of the variant: `A` is the first, the baseline.")
    title: str = Field(description="Experiment and run that the user named.")
    runs: tuple[ComparedRun, ...] = Field(description="Its runs, by seed.")


class Setting(SummaryModel):
    """A field of the manifest in which variants differ."""

    path: str = Field(description="Path of the field: `pipeline[1].downsample.keepPercent`.")
    values: tuple[str, ...] = Field(description="Values as JSON text, or `absent`.")


class Fact(SummaryModel):
    """A property of the data, the software or the time of the runs."""

    name: str = Field(description="Name of the property.")
    values: tuple[str, ...] = Field(description="Values as text.")
    differs: bool = Field(description="Whether the values differ.")


class StepRows(SummaryModel):
    """Rows that left a step, over all epochs of the run that the user named."""

    stream: Literal["Training", "Evaluation"] = Field(description="Stream of the step.")
    kind: str = Field(description="Kind of the step.")
    labels: tuple[str | None, ...] = Field(description="The step in a line; null: has none.")
    rows: tuple[Count | None, ...] = Field(description="Rows that left it; null: has none.")


class Difference(SummaryModel):
    """The difference between a variant and the first one in a metric."""

    label: str = Field(description="Letter of the variant.")
    value: float = Field(description="Mean difference over the paired seeds.")
    low: float | None = Field(description="Lower end of the interval; null: no interval.")
    high: float | None = Field(description="Upper end of the interval; null: no interval.")
    confidence: float = Field(description="Share of such intervals that hold the true difference.")
    seeds: Count = Field(description="Number of paired seeds.")
    detectable: float = Field(
        description="True difference that such a comparison finds in four of five cases; with one "
        "seed, a lower bound of it."
    )
    verdict: Verdict = Field(description="What the interval says.")


class ComparedMetric(SummaryModel):
    """A metric of all variants."""

    name: str = Field(description="Name: `auc` and `loss` are those of the shared rows.")
    on_shared_rows: bool = Field(
        description="Whether it was computed from the evaluation rows that all runs share. Only "
        "then a difference has an interval and a verdict."
    )
    rises: bool | None = Field(description="Whether larger is better; null: unknown.")
    means: tuple[float | None, ...] = Field(description="Mean over the runs of each variant.")
    deviations: tuple[float | None, ...] = Field(
        description="Standard deviation over the runs; null: fewer than two."
    )
    differences: tuple[Difference, ...] = Field(
        default=(), description="Each further variant against the first."
    )


class SharedRows(SummaryModel):
    """The evaluation rows that all runs have in common."""

    rows: Count = Field(description="Number of these rows.")
    groups: Count = Field(description="Number of their groups: users or requests.")


class Comparison(SummaryModel):
    """All of a comparison."""

    version: Literal[1] = Field(default=1, description="Version of this document's shape: 1.")
    variants: tuple[ComparedVariant, ...] = Field(description="The variants, the baseline first.")
    verdicts: tuple[str, ...] = Field(description="A sentence for each variant but the first.")
    settings: tuple[Setting, ...] = Field(description="Fields of the manifest that differ.")
    data: tuple[Fact, ...] = Field(description="Data, seeds and software.")
    steps: tuple[StepRows, ...] = Field(description="Rows through the steps.")
    shared_rows: SharedRows | None = Field(description="Evaluation rows in common; null: none.")
    metrics: tuple[ComparedMetric, ...] = Field(
        description="Metrics; the first one decides the verdict."
    )
    cost: tuple[Fact, ...] = Field(description="Time and resources.")
    warnings: tuple[str, ...] = Field(description="Reasons to doubt the comparison.")
