"""Builds a comparison of gathered variants: their settings, data, rows, metrics, time and cost.

`gathering` runs before this; `judging` measures the metrics and gives the verdict; `terminal` and
`page` show the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Literal

from pipeline_runtime.comparison.gathering import Gathered, GatheredRun, Variant
from pipeline_runtime.comparison.judging import judge
from pipeline_runtime.comparison.model import (
    ComparedRun,
    ComparedVariant,
    Comparison,
    Fact,
    Setting,
    StepRows,
)
from pipeline_runtime.config import compare_configs
from pipeline_runtime.formatting import (
    NOTHING,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from pipeline_runtime.report.files.summary import StepFlow, Summary

_SECONDS_PER_HOUR = 3600


def compare(gathered: Gathered) -> Comparison:
    """Compare the variants, each with the first."""
    variants = gathered.variants
    judgement = judge(variants)
    return Comparison(
        variants=tuple(map(_describe_variant, variants)),
        verdicts=judgement.verdicts,
        settings=tuple(_compare_settings(variants)),
        data=tuple(_compare_facts(variants, _list_data)),
        steps=(
            *_compare_steps(variants, "Training"),
            *_compare_steps(variants, "Evaluation"),
        ),
        shared_rows=judgement.shared_rows,
        metrics=judgement.metrics,
        cost=tuple(_compare_facts(variants, _list_cost)),
        warnings=(*gathered.warnings, *_warn_about_order(variants), *judgement.warnings),
    )


def _describe_variant(variant: Variant) -> ComparedVariant:
    named = variant.named.listed
    return ComparedVariant(
        label=variant.label,
        title=f"{named.experiment}/{named.name}",
        runs=tuple(map(_describe_run, variant.runs)),
    )


def _describe_run(run: GatheredRun) -> ComparedRun:
    listed = run.listed
    return ComparedRun(
        experiment=listed.experiment,
        run=listed.name,
        folder=listed.folders[0].uri,
        phase=listed.phase,
        started_at=listed.started_at,
        seed=run.seed,
        evaluation_rows=None if run.evaluation is None else run.evaluation.table.num_rows,
    )


def _compare_settings(variants: Sequence[Variant]) -> Iterator[Setting]:
    """Yield the fields of the manifests that differ; none if one manifest is missing."""
    configs = [variant.config for variant in variants if variant.config is not None]
    if len(configs) == len(variants):
        for path, values in compare_configs(configs):
            yield Setting(path=path, values=tuple(values))


def _compare_facts(
    variants: Sequence[Variant], list_facts: Callable[[Variant], Mapping[str, str]]
) -> Iterator[Fact]:
    facts = [list_facts(variant) for variant in variants]
    for name in facts[0]:
        values = tuple(each[name] for each in facts)
        yield Fact(name=name, values=values, differs=len(set(values)) > 1)


def _list_data(variant: Variant) -> dict[str, str]:
    summary = variant.named.summary
    seeds = ", ".join(f"{place} {seed}" for place, seed in summary.seeds.steps.items())
    versions = summary.versions
    return {
        "seeds of training": ", ".join(str(run.seed) for run in variant.runs),
        "seeds of steps": seeds or NOTHING,
        "snapshots": ", ".join(pin.describe() for pin in summary.snapshots) or NOTHING,
        "files of the table": format_count(summary.dataset.files),
        "rows of the table": format_count(summary.dataset.rows),
        "rows trained on": format_count(summary.checksum.rows),
        "checksum of these rows": summary.checksum.sum,
        "code that trains": summary.run.code_digest or NOTHING,
        "order of batches": "fixed by the seed" if summary.order.preserve_order else "not fixed",
        "versions": f"Lastmile {versions.lastmile}, Torch {versions.torch}",
    }


def _list_cost(variant: Variant) -> dict[str, str]:
    """Return time and resources, as means over the runs of a variant."""
    summaries = [run.summary for run in variant.runs]

    def average(get: Callable[[Summary], float]) -> float:
        return sum(map(get, summaries)) / len(summaries)

    firsts = [s.throughput.seconds_to_first_batch for s in summaries]
    known = [seconds for seconds in firsts if seconds is not None]
    gpu_hours = average(lambda s: len(s.machine.gpus) * s.run.seconds / _SECONDS_PER_HOUR)
    core_hours = average(lambda s: s.machine.cpus * s.run.seconds / _SECONDS_PER_HOUR)
    return {
        "duration": format_duration(average(lambda s: s.run.seconds)),
        "first batch after": format_duration(sum(known) / len(known)) if known else NOTHING,
        "samples trained": format_count(round(average(lambda s: s.training.samples))),
        "samples per second": format_rate(average(lambda s: s.throughput.samples_per_second)),
        "trainer waited": format_percent(average(lambda s: s.time_shares.waited)),
        "GPU hours": f"{gpu_hours:.3g}",
        "CPU core hours": f"{core_hours:.3g}",
    }


def _compare_steps(
    variants: Sequence[Variant], stream: Literal["Training", "Evaluation"]
) -> Iterator[StepRows]:
    """Yield each step that any variant has, in the order of the streams."""
    flows = [
        variant.named.summary.steps
        if stream == "Training"
        else variant.named.summary.evaluation_steps
        for variant in variants
    ]
    by_key = [_number_kinds(steps) for steps in flows]
    for kind, number in _merge_orders([list(each) for each in by_key]):
        found = [each.get((kind, number)) for each in by_key]
        yield StepRows(
            stream=stream,
            kind=kind,
            labels=tuple(flow.label if flow else None for flow in found),
            rows=tuple(flow.rows_out if flow else None for flow in found),
        )


StepKey = tuple[str, int]


def _number_kinds(steps: Sequence[StepFlow]) -> dict[StepKey, StepFlow]:
    """Return the steps by kind and number among those of their kind."""
    found: dict[StepKey, StepFlow] = {}
    for flow in steps:
        number = sum(kind == flow.kind for kind, _ in found)
        found[flow.kind, number] = flow
    return found


def _merge_orders(orders: Sequence[list[StepKey]]) -> list[StepKey]:
    """Return all keys once, in an order that keeps each list's own as far as possible."""
    merged: list[StepKey] = []
    for order in orders:
        result: list[StepKey] = []
        matcher = SequenceMatcher(a=merged, b=order, autojunk=False)
        for _, start, stop, begin, end in matcher.get_opcodes():
            new = [key for key in order[begin:end] if key not in merged[start:stop]]
            result += [*merged[start:stop], *new]
        merged = list(dict.fromkeys(result))
    return merged


def _warn_about_order(variants: Sequence[Variant]) -> Iterator[str]:
    free = [v.label for v in variants if not v.named.summary.order.preserve_order]
    if free:
        names = ", ".join(free)
        yield (
            f"{names}: the order of batches is not fixed by the seed, so equal runs differ. This "
            "noise of training is in the intervals"
        )
