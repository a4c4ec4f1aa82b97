"""Permutation importance: how much worse a model scores when rows get the inputs of other rows.

For each group of columns and each repeat, the rows of a chunk exchange their values of the group's
columns, and the model scores them again. The drop of the metric is the group's importance (Breiman,
"Random forests", 2001; scikit-learn's `permutation_importance`). Values stay together in a row of
the group, and all groups of a repeat are permuted alike. The permutation depends on the seed, the
repeat and the rows of the chunk, so that it is the same on any worker.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.errors import StepError
from pipeline_runtime.measuring.base import Accumulator, Merging, Result
from pipeline_runtime.measuring.classification import Auc, LogLoss
from pipeline_runtime.measuring.counting import Counts
from pipeline_runtime.measuring.student import find_t
from pipeline_runtime.measuring.values import State
from pipeline_runtime.sources.gather import take_rows
from pipeline_runtime.steps.base import ROW_HASH_COLUMN
from pipeline_runtime.steps.checks import (
    Checks,
    broken,
    check_number,
    set_column,
    unknown_column,
)
from pipeline_runtime.steps.predict.model import Ablation, AblationGroup

CONFIDENCE = 0.95
# Chunks with rows, and rows of them.
_CHUNKS = Counts(size=2)

Score = Callable[[pa.Table], pa.ChunkedArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAblation:
    """The ablation of one model.

    Attributes:
        place: number of the model among those of the step.
        score: the output that is measured.
        metric: of the columns `score`, `label` and perhaps `weight`.
    """

    config: Ablation
    place: int
    score: str
    metric: Accumulator

    @property
    def columns(self) -> frozenset[str]:
        """Columns of the step's input that it reads, beside the model's inputs."""
        return frozenset(filter(None, (self.config.label, self.config.weight)))

    @property
    def accumulators(self) -> tuple[Merging, ...]:
        """The counts of chunks, the metric of the scores as they are, and of each permutation."""
        num_scorings = len(self.config.groups) * self.config.repeats
        return (_CHUNKS, self.metric, *[self.metric] * num_scorings)

    def observe(self, table: pa.Table, scores: pa.ChunkedArray, score: Score) -> list[State]:
        """Return the states of these rows, in the order of `accumulators`.

        Args:
            table: the step's input, a chunk.
            scores: of the rows as they are.
            score: returns the scores of other rows of the same columns.
        """
        if not table.num_rows:
            return [each.empty() for each in self.accumulators]
        orders = [_permute(table, self.config.seed, each) for each in range(self.config.repeats)]
        states = [_CHUNKS.of(1, table.num_rows), self._measure(table, scores)]
        for index, group in enumerate(self.config.groups):
            for places in orders:
                permuted = table
                for name in group.columns:
                    column = take_rows(table.column(name), places)
                    permuted = set_column(permuted, name, column)
                try:
                    found = score(permuted)
                except StepError as error:
                    raise StepError(
                        f"ablation.groups[{index}], values permuted: {error}"
                    ) from error
                states.append(self._measure(table, found))
        return states

    def _measure(self, table: pa.Table, scores: pa.ChunkedArray) -> State:
        columns = {"score": scores, "label": table.column(self.config.label)}
        if self.config.weight is not None:
            columns["weight"] = table.column(self.config.weight)
        return self.metric.update(pa.table(columns))

    def finish(self, states: Sequence[State], model: str) -> Iterator[Result]:
        """Yield the importance of each group.

        Args:
            states: of all rows, in the order of `accumulators`.
            model: name of the model.
        """
        chunks, base, *permuted = states
        num_chunks, num_rows = _CHUNKS.list_numbers(chunks)
        baseline = self.metric.finish(base)
        repeats = self.config.repeats
        for index, group in enumerate(self.config.groups):
            mine = permuted[index * repeats : (index + 1) * repeats]
            values = [self.metric.finish(state)["value"] for state in mine]
            yield {
                "name": group.name,
                "kind": "importance",
                **self._summarise(baseline["value"], values),
                "rows": baseline["rows"],
                "leftOut": baseline["leftOut"],
                "model": model,
                "metric": self.config.metric,
                "columns": list(group.columns),
                "baseline": baseline["value"],
                "rowsPerPermutation": num_rows / num_chunks if num_chunks else 0.0,
            }

    def _summarise(self, baseline: float | None, values: Sequence[float | None]) -> Result:
        """Return the drop of the metric, its interval over the repeats, and each repeat's drop."""
        sign = -1 if self.config.metric == "LogLoss" else 1
        drops = [
            sign * (baseline - value)
            for value in values
            if baseline is not None and value is not None
        ]
        if len(drops) < len(values):  # as with labels of one class
            return {"value": None, "interval": None, "drops": []}
        mean, interval = math.fsum(drops) / len(drops), None
        if len(drops) > 1:
            error = statistics.stdev(drops) / math.sqrt(len(drops))
            half = find_t(CONFIDENCE, len(drops) - 1) * error
            interval = [mean - half, mean + half]
        return {"value": mean, "interval": interval, "drops": drops}


def bind_ablation(
    config: Ablation,
    inputs: Mapping[str, frozenset[str]],
    types: Sequence[Mapping[str, pa.DataType]],
    schema: pa.Schema,
) -> BoundAblation:
    """Return an ablation, bound to the models of its step.

    Args:
        inputs: the columns of the step's input that each model needs, by the model's name.
        types: the types of the outputs of each model, in the same order.
        schema: of the step's input.

    Raises ManifestError with every broken rule.
    """
    checks = Checks("")
    place = list(inputs).index(config.model)
    outputs = types[place]
    score = config.score or next(iter(outputs))
    with checks.at("score"):
        if score not in outputs:
            raise broken(unknown_column(score, outputs, f"the outputs of the model {config.model}"))
        check_number(pa.schema([(score, outputs[score])]), score)
    for field, name in (("label", config.label), ("weight", config.weight)):
        with checks.at(field):
            if name is not None:
                check_number(schema, name)
    for index, group in enumerate(config.groups):
        with checks.at(f"groups[{index}].columns"):
            _check_group(group, inputs[config.model], config.model)
    checks.finish()
    weight = "weight" if config.weight is not None else None
    metric: Accumulator = LogLoss(score="score", label="label", weight=weight)
    if config.metric == "AUC":
        metric = Auc(score="score", label="label", weight=weight, has_curve=False)
    return BoundAblation(config=config, place=place, score=score, metric=metric)


def _check_group(group: AblationGroup, inputs: frozenset[str], model: str) -> None:
    for name in group.columns:
        if name not in inputs:
            what = f"the step's input that the model {model} reads"
            raise broken(unknown_column(name, sorted(inputs), what))


def _permute(table: pa.Table, seed: int, repeat: int) -> npt.NDArray[np.int64]:
    """Return a permutation of the places of a chunk's rows."""
    rows = table.num_rows
    if ROW_HASH_COLUMN in table.schema.names:  # as in each chunk of a feed
        rows = int(table.column(ROW_HASH_COLUMN).to_numpy().sum(dtype=np.uint64))
    bits = np.random.Philox(np.random.SeedSequence([seed, repeat, rows]))
    return np.random.Generator(bits).permutation(table.num_rows)
