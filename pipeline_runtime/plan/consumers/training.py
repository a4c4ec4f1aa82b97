"""A training: batches of the training stream, and of an evaluation's if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline_runtime.config import ExperimentSpec, Shuffle
from pipeline_runtime.plan.consumers.base import IN_ORDER
from pipeline_runtime.plan.engine import choose_feed
from pipeline_runtime.plan.explain import scan_document
from pipeline_runtime.plan.model import FeedChoice, Plan, Stage, StreamPlan
from pipeline_runtime.plan.problems import Problems
from pipeline_runtime.steps.base import public_schema
from pipeline_runtime.steps.training_only import TrainingOnly

_OUTPUT = "the pipeline's output"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConsumer:
    """Trains a model; see `consumers.base.Consumer`."""

    spec: ExperimentSpec

    @property
    def runner(self) -> str:
        return "pipeline_runtime.run.training"

    @property
    def roles(self) -> tuple[str, ...]:
        return ("training", "evaluation") if self.spec.training.evaluation else ("training",)

    @property
    def seed(self) -> int:
        return self.spec.training.seed

    @property
    def request_key(self) -> str | None:
        is_moved = self.spec.training.shuffle.unit == "Request"
        return self.spec.dataset.request_key if is_moved else None

    def shuffle(self, role: str) -> Shuffle:
        return self.spec.training.shuffle if role == "training" else IN_ORDER

    def find_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the columns of batches; label and weight are always among them."""
        training = self.spec.training
        problems = Problems()
        problems.check_columns("spec.training.columns", training.columns, schema, _OUTPUT)
        for field, name in (
            ("labelColumn", training.label_column),
            ("weightColumn", training.weight_column),
        ):
            names = (name,) if name else None
            problems.check_columns(f"spec.training.{field}", names, schema, _OUTPUT)
        if training.shuffle.unit == "Request":
            request_key = (self.spec.dataset.request_key or "",)
            problems.check_columns("spec.training.shuffle.unit", request_key, schema, _OUTPUT)
        problems.raise_if_any()
        wanted = training.columns or tuple(public_schema(schema).names)
        extra = (training.label_column, training.weight_column)
        return tuple(dict.fromkeys([*wanted, *(name for name in extra if name)]))

    def takes_once(self, columns: frozenset[str]) -> frozenset[str]:
        training = self.spec.training
        if not training.takes_requests:
            return frozenset()
        return columns - {training.label_column or "", training.weight_column or ""}

    def choose_feed(self, stages: Sequence[Stage]) -> FeedChoice:
        return choose_feed(self.spec.pipeline_options, stages)

    def warn(self, stream: StreamPlan) -> Iterator[str]:
        if self.spec.training.deduplicated and not stream.request_columns:
            yield (
                "training.deduplicated is true, but no column of the batches stands once a "
                "request, so they have no request_index: declare spec.dataset.requestKey and "
                "requestColumns, or read a nested table, and see which steps mix them with other "
                "columns"
            )

    def describe(self, plan: Plan) -> Iterator[str]:
        yield f"Then: {_then(plan)}"
        yield f"Feed: {plan.feed.engine} ({plan.feed.reason})"
        yield f"Delivery: {_delivery(plan)}"
        if plan.evaluation:
            yield _evaluation(plan.evaluation)

    def document(self, plan: Plan) -> dict[str, Any]:
        delivery = plan.delivery
        return {
            "delivery": {
                "readyBatches": delivery.is_ready,
                "reason": delivery.reason,
                "sparse": delivery.sparse,
                "compression": delivery.compression,
                "batchedCalls": delivery.batched_calls,
                "sharedMemory": delivery.shared_memory,
                "readAhead": plan.training.reads_ahead,
            },
            "prefetch": plan.prefetch,
            "evaluation": scan_document(plan.evaluation) if plan.evaluation else None,
        }


def _evaluation(stream: StreamPlan) -> str:
    pruning = stream.scan.pruning
    without = [step for step in stream.steps if isinstance(step.transform, TrainingOnly)]
    names = ", ".join(f"{step.path} {step.kind}" for step in without)
    steps = f"the same steps without {names}, for the training alone" if names else "the same steps"
    return (
        f"Evaluation: {steps} over {pruning.rows_read:,} rows of {pruning.row_groups_read} row "
        f"groups; pushed to the files: {', '.join(stream.pushed) or 'nothing'}"
    )


def _then(plan: Plan) -> str:
    shuffle = plan.training.shuffle
    mixed = {
        "None": "no shuffle",
        "Row": f"rows shuffled in windows of {shuffle.window_rows:,}",
        "Request": f"requests shuffled in windows of {shuffle.window_rows:,} rows",
    }[shuffle.unit]
    order = "in the order they are ready, so that equal runs differ"
    if plan.preserve_order:
        order = "in a fixed order"
    once = plan.training.request_columns
    shared = f" ({', '.join(once)} once a request)" if once else ""
    ahead = ", the next one made ahead" if plan.prefetch else ""
    return f"{mixed}, batches of {len(plan.batch_columns)} columns{shared}, {order}{ahead}"


def _delivery(plan: Plan) -> str:
    delivery = plan.delivery
    calls = "several short chunks a call" if delivery.batched_calls else "a chunk a call"
    calls += ", in shared memory on one machine" if delivery.shared_memory else ""
    if not delivery.is_ready:
        return (
            f"rows, of which the trainers make batches ({delivery.reason}); between processes "
            f"{calls}"
        )
    filling = "lists without what fills them up" if delivery.sparse else "lists filled up"
    compressed = {
        "None": "never compressed",
        "Auto": "compressed if the trainers wait for them",
    }.get(delivery.compression, f"compressed by {delivery.compression}")
    return f"{delivery.reason}; between processes {calls}, one buffer each, {filling}, {compressed}"
