"""A run that never ran: a directory as a real run leaves it, made from a seed in milliseconds.

Owned here: synthetic summaries and histories for tests of everything that shows a run. Nothing of
the runtime imports it.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from pipeline_runtime.report.files.autoscaler_decisions import ScalingDecision, write_decisions
from pipeline_runtime.report.files.metrics_history import HISTORY_FILE, HistoryWriter
from pipeline_runtime.report.files.plan_file import PLAN_FILE
from pipeline_runtime.report.files.summary import (
    Checkpoints,
    Checksum,
    DatasetRead,
    Evaluation,
    ExperimentName,
    Machine,
    Order,
    Run,
    Seeds,
    StepFlow,
    Summary,
    Throughput,
    TimeShares,
    Training,
    Versions,
    write_summary,
)
from pipeline_runtime.report.html import MANIFEST_FILE

_STARTED = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
_BATCH_SIZE = 4096
_SECONDS_PER_ENTRY = 0.5
_EVALUATIONS = 6
_STEPS_PER_SUPPLY = 10
# When of the whole, workers before and after, why, share of waits.
_DECISIONS = (
    (0.05, 2, 4, "ScaleUpLimit", 0.5),
    (0.15, 4, 9, "DesiredWithinRange", 0.31),
    (0.6, 9, 7, "ScaleDownLimit", 0.004),
)

# Kind, label and the share of rows that it keeps.
_STEPS = (
    ("read", "parquet impressions/ (41 of 44 columns)", 1.0),
    ("antiJoin", "spam_users on user_id", 0.9312),
    ("filter", "country in ('US','CA')", 0.6134),
    ("downsample", "10 % where label = 0, seed 17, weight in sample_weight", 0.1391),
    ("derive", "label = clicked or saves > 0", 1.0),
    ("padSequence", "user_history to 200", 1.0),
)
_BYTES_PER_ROW = 2700

_PLAN = {
    "stages": [
        {
            "name": "Read and transform",
            "where": "data workers",
            "steps": [
                {"kind": "read", "label": _STEPS[0][1], "notes": ["41 of 44 columns are read"]},
                {"kind": "antiJoin", "label": _STEPS[1][1], "notes": ["side table broadcast once"]},
                {"kind": "filter", "label": _STEPS[2][1], "notes": ["pushed to the files"]},
                {"kind": "downsample", "label": _STEPS[3][1], "notes": ["fused with the above"]},
            ],
        },
        {
            "name": "Batches",
            "where": "trainer",
            "steps": [{"kind": "batch", "label": "4,096 rows", "notes": []}],
        },
    ],
    "text": "Read  parquet impressions/\n  └─ antiJoin spam_users on user_id  (broadcast)\n",
}

_MANIFEST = """\
apiVersion: experiments.lastmile.dev/v1alpha1
kind: DatasetExperiment
metadata:
  name: quickstart
spec:
  dataset:
    parquet: {uri: impressions/}
  pipeline:
  - antiJoin: {parquet: {uri: spam_users/}, keys: [user_id]}
  - filter: {where: "country in ('US','CA')"}
  - downsample: {where: "label = 0", keepPercent: 10, seed: 17, weightColumn: sample_weight}
  training: {entrypoint: "pipeline_runtime.training.ranking:train_loop", batchSize: 4096}
"""


def build_sample_summary(num_steps: int = 2000) -> Summary:
    """A complete run of `num_steps` steps, the same each time; its last batch is half full."""
    seconds = 9.4 + num_steps * _SECONDS_PER_ENTRY
    num_rows = round((num_steps - 0.5) * _BATCH_SIZE / math.prod(kept for _, _, kept in _STEPS))
    flows = _build_flows(num_rows)
    samples = flows[-1].rows_out
    return Summary(
        experiment=ExperimentName(name="quickstart"),
        run=Run(
            run_hash="8c1f0b7a52de4e19",
            started_at=_STARTED,
            finished_at=_STARTED + timedelta(seconds=seconds),
            seconds=seconds,
            outcome="Complete",
        ),
        seeds=Seeds(training=7, steps={"pipeline[2].downsample": 17}),
        versions=Versions(
            lastmile="0.1.0",
            python="3.11.2",
            ray="2.60.0",
            torch="2.15.0",
            pyarrow="26.0.1",
            numpy="2.4.6",
        ),
        machine=Machine(cpus=2, memory_bytes=16_000_000_000, gpus=()),
        dataset=_build_dataset(num_rows),
        steps=flows,
        evaluation_steps=tuple(_scale_flow(flow, 0.05) for flow in flows),
        training=_build_training(num_steps, samples),
        throughput=Throughput(
            samples_per_second=samples / seconds,
            rows_per_second=num_rows / seconds,
            seconds_to_first_batch=0.431,
        ),
        time_shares=TimeShares(
            compute=0.6213,
            production=0.2144,
            transfer=0.051,
            batching=0.0309,
            collate=0.0421,
            paused=0.0403,
        ),
        checksum=Checksum(rows=samples, sum="9f3a6b01c2d4e5f6", sum_of_squares="0123456789abcdef"),
        order=Order(
            preserve_order=True,
            resume="order",
            detail="Batches are fixed by the seed, so a resumed run trains on the same ones.",
        ),
        checkpoints=Checkpoints(written=4, last="file:///build/quickstart/checkpoints/step-2000"),
    )


def _build_flows(num_rows: int) -> tuple[StepFlow, ...]:
    flows: list[StepFlow] = []
    rows_in = num_rows
    for index, (kind, label, kept) in enumerate(_STEPS):
        rows_out = round(rows_in * kept)
        flows.append(
            StepFlow(
                index=index,
                kind=kind,
                label=label,
                rows_in=rows_in,
                rows_out=rows_out,
                bytes_in=rows_in * _BYTES_PER_ROW,
                bytes_out=rows_out * _BYTES_PER_ROW,
                seconds=rows_in / 3e6,
            )
        )
        rows_in = rows_out
    return tuple(flows)


def _scale_flow(flow: StepFlow, factor: float) -> StepFlow:
    counts = ("rows_in", "rows_out", "bytes_in", "bytes_out")
    update: dict[str, object] = {name: round(getattr(flow, name) * factor) for name in counts}
    return flow.model_copy(update=update | {"seconds": flow.seconds * factor})


def _build_dataset(num_rows: int) -> DatasetRead:
    return DatasetRead(
        files=64,
        files_read=48,
        row_groups=1024,
        row_groups_read=701,
        rows=round(num_rows * 1.42),
        rows_read=num_rows,
        bytes_read=num_rows * 412,
        pushed=("day >= '2026-01-01'", "country in ('US','CA')"),
    )


def _build_training(num_steps: int, samples: int) -> Training:
    return Training(
        entrypoint="pipeline_runtime.training.ranking:train_loop",
        epochs=1,
        steps=num_steps,
        samples=samples,
        batch_size=_BATCH_SIZE,
        world_size=1,
        device="cpu",
        precision="float32",
        metrics={"loss": 0.4127, "auc": 0.78123},
        evaluations=_build_evaluations(num_steps),
        padded_rows=num_steps * _BATCH_SIZE - samples,
    )


def _build_evaluations(num_steps: int) -> tuple[Evaluation, ...]:
    return tuple(_build_evaluation(num_steps, part) for part in range(1, _EVALUATIONS + 1))


def _build_evaluation(num_steps: int, part: int) -> Evaluation:
    done = part / _EVALUATIONS
    metrics = {
        "auc": 0.5 + 0.2812 * (1 - np.exp(-3 * done)),
        "loss": 0.42 + 0.25 * np.exp(-4 * done),
    }
    return Evaluation(
        epoch=0,
        step=round(num_steps * done),
        metrics={name: round(float(value), 4) for name, value in metrics.items()},
    )


def write_sample_history(directory: Path, num_steps: int = 2000) -> None:
    """A history as a run of `num_steps` steps writes it: one entry a step, some evaluations."""
    random = np.random.default_rng(17)
    evaluations = {entry.step: entry for entry in _build_evaluations(num_steps)}
    with HistoryWriter(directory / HISTORY_FILE) as writer:
        for step in range(1, num_steps + 1):
            seconds = step * _SECONDS_PER_ENTRY
            writer.append(seconds, 0, step, _build_entry(random, step / num_steps))
            if step % _STEPS_PER_SUPPLY == 0:
                writer.append(seconds, 0, step, _build_supply(random, seconds, num_steps))
            if step in evaluations:
                found = evaluations[step].metrics
                writer.append(seconds, 0, step, {f"eval_{k}": v for k, v in found.items()})


def _build_entry(random: np.random.Generator, done: float) -> dict[str, float]:
    noise = float(random.normal())
    shares = random.dirichlet(np.array([60, 25 * (1 - done) + 2, 5, 3, 4, 0.5]))
    speed = _BATCH_SIZE / _SECONDS_PER_ENTRY * (0.7 + 0.4 * float(shares[0]))
    names = ("compute", "production", "transfer", "batching", "collate", "paused")
    return {
        "loss": 0.41 + 0.28 * float(np.exp(-4 * done)) + 0.012 * noise,
        "learning_rate": 1e-3 * (1 - done) + 1e-5,
        "samples_per_second": speed,
        "rows_per_second": speed * 12.6,
        "step_seconds": _BATCH_SIZE / speed,
        "queue_length": float(random.integers(0, 9)),
        **{f"share_{name}": float(share) for name, share in zip(names, shares, strict=True)},
    }


def build_sample_decisions(num_steps: int = 2000) -> list[ScalingDecision]:
    """Build decisions of an autoscaler about the sample run."""
    whole = num_steps * _SECONDS_PER_ENTRY
    return [
        ScalingDecision(
            version=1,
            time=_STARTED + timedelta(seconds=share * whole),
            before=before,
            after=after,
            reason=reason,
            message=f"{after} with 7.5% headroom; trainers wait {waits:.1%} of their time",
            attempt=1,
            inputs={"productionShare": waits, "gpuUtilization": 1.0 - waits - 0.05},
        )
        for share, before, after, reason, waits in _DECISIONS
    ]


def _build_supply(random: np.random.Generator, seconds: float, num_steps: int) -> dict[str, float]:
    done = seconds / (num_steps * _SECONDS_PER_ENTRY)
    made = [entry for entry in _DECISIONS if entry[0] <= done]
    workers, waits = (made[-1][2], 0.6 / made[-1][2]) if made else (2, 0.5)
    waits = float(np.clip(waits + 0.02 * random.normal(), 0, 1))
    return {
        "unix_seconds": (_STARTED + timedelta(seconds=seconds)).timestamp(),
        "wait_share": waits,
        "busy_share": 1.0 - waits - 0.04,
        "readers": 4.0 * workers,
        "data_workers": float(workers),
    }


def write_sample_run(directory: Path, num_steps: int = 2000) -> Summary:
    """Everything that a run leaves but the report itself; the summary that was written."""
    summary = build_sample_summary(num_steps)
    write_summary(directory, summary)
    write_sample_history(directory, num_steps)
    write_decisions(directory, build_sample_decisions(num_steps))
    (directory / PLAN_FILE).write_text(json.dumps(_PLAN), encoding="utf-8")
    (directory / MANIFEST_FILE).write_text(_MANIFEST, encoding="utf-8")
    return summary
