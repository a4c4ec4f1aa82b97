"""Step `generate`: add the texts that a language model generates from a prompt for each row.

    table ─▶ prompts ─▶ (key, prompt) ─▶ batches ─▶ engine ─▶ text or error, tokens ─▶ columns

Binding has the model opened by the planner (`BindContext.open_generator`). The engine gets keys and
prompts alone; all other columns stay the Arrow buffers that they are. A row whose prompt the model
cannot take becomes an error row: its text is null. `tally` counts rows, errors and tokens.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.config.decimals import parse_percent
from pipeline_runtime.errors import StepError
from pipeline_runtime.measuring.base import Result
from pipeline_runtime.steps import engines
from pipeline_runtime.steps.base import BindContext
from pipeline_runtime.steps.checks import Checks, broken, replace_types, row_hashes, set_column
from pipeline_runtime.steps.engine_step import EngineStep, sort_by_length
from pipeline_runtime.steps.generate.model import GenerateStep
from pipeline_runtime.steps.generate.prompts import PromptTemplate
from pipeline_runtime.steps.generate.tally import Tally
from pipeline_runtime.steps.observing import ObservingStep
from pipeline_runtime.steps.predict.batch_sizes import run_in_batches
from pipeline_runtime.steps.type_names import TypeNameError, parse_type

_NO_VALUE = "every column of the prompt is null"
_ANSWER = pa.schema(
    {
        engines.TEXT: pa.large_string(),
        engines.ERROR: pa.large_string(),
        engines.PROMPT_TOKENS: pa.int64(),
        engines.GENERATED_TOKENS: pa.int64(),
    }
)
_BATCH_SIZE = 16  # of Transformers: the memory of the attention grows with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate(EngineStep, ObservingStep):
    """Renders prompts, has them answered, and adds the answers.

    Attributes:
        max_errors: largest share of error rows.
        is_drawn: True if the engine draws tokens at random, by the row's identity.
    """

    kind: ClassVar[str] = "generate"
    observes: ClassVar[bool] = True

    template: PromptTemplate
    error_column: str | None
    max_errors: Fraction
    is_drawn: bool

    @property
    def needs_row_hash(self) -> bool:
        return self.is_drawn

    @classmethod
    def bind(
        cls, config: GenerateStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        if context is None or context.open_generator is None:
            raise broken("must have a planner that opens models, but there is none", cls.kind)
        checks, template, opened = Checks(cls.kind), None, None
        kind = pa.string()
        with checks.at("prompt"):
            template = PromptTemplate.bind(config.prompt, input_schema)
        with checks.at("outputs[0].type"):
            kind = _parse_output(config.outputs[0].type)
        with checks.at():
            opened = context.open_generator(config)
        checks.finish()
        assert template is not None
        assert opened is not None
        types = {config.outputs[0].name: kind}
        if config.error_column is not None:
            types[config.error_column] = pa.string()
        all_rows = np.iinfo(np.int32).max
        default = all_rows if config.engine == "VLLM" else _BATCH_SIZE
        return cls(
            template=template,
            opened=opened,
            output=config.outputs[0].name,
            type=kind,
            error_column=config.error_column,
            max_errors=parse_percent(config.max_error_percent) / 100,
            batch_size=config.batch_size or default,
            is_drawn=config.temperature != 0,
            inputs=template.columns,
            outputs=frozenset(types),
            output_schema=replace_types(input_schema, types),
        )

    def __call__(self, table: pa.Table) -> pa.Table:
        return self.observe(table)[0]

    def observe(self, table: pa.Table) -> tuple[pa.Table, bytes]:
        """Return the table with the texts, and the counts. Raises StepError."""
        answers, microseconds = self._answer(table)
        tally = _count(answers, microseconds)
        if self.max_errors == 0 and tally.errors:
            place = pc.index(answers[engines.ERROR].is_valid(), True).as_py()
            reason = answers[engines.ERROR][place].as_py()
            raise StepError(
                f"maxErrorPercent: must be above 0 if a row may have an error, but row {place:,} "
                f"of the chunk has one: {reason}. Filter or shorten such rows in a step before, "
                "or raise maxErrorPercent"
            )
        result = set_column(table, self.output, answers[engines.TEXT].cast(self.type))
        if self.error_column is not None:
            result = set_column(result, self.error_column, answers[engines.ERROR].cast(pa.string()))
        return result, tally.to_bytes()

    def _answer(self, table: pa.Table) -> tuple[pa.Table, int]:
        """Return a row of `_ANSWER` for each row of the table, and the engine's microseconds."""
        prompts = self.template.render(table)
        places = pa.array(np.arange(len(prompts), dtype=np.uint64))
        keys = row_hashes(table, self.kind) if self.is_drawn else places
        rows = pa.table({engines.KEY: keys, engines.PROMPT: prompts})
        order, known = sort_by_length(prompts)
        parts, nanoseconds = [], 0
        if known:
            load = self.opened.load
            engine, asked = load(), rows.take(order[:known])  # nulls are at the end
            began = time.perf_counter_ns()
            parts = run_in_batches(engine, asked, self.batch_size)
            nanoseconds = time.perf_counter_ns() - began
        blank = len(prompts) - known
        missing = {
            engines.TEXT: pa.nulls(blank, pa.large_string()),
            engines.ERROR: pa.array([_NO_VALUE] * blank, pa.large_string()),
            engines.PROMPT_TOKENS: np.zeros(blank, np.int64),
            engines.GENERATED_TOKENS: np.zeros(blank, np.int64),
        }
        answers = pa.concat_tables([_to_table(part) for part in [*parts, missing]])
        return answers.take(np.argsort(order)).combine_chunks(), nanoseconds // 1000

    def start(self) -> Tally:
        """Return the counts of no row."""
        return Tally()

    def load(self, observed: bytes) -> Tally:
        """Return the counts in what `observe` returned. Raises OutputError."""
        return Tally.from_bytes(observed)

    def merge(self, parts: Sequence[Tally]) -> Tally:
        """Return the counts of all parts."""
        return Tally.merge(parts)

    def finish(self, states: Tally) -> Iterator[Result]:
        """Yield the counts. Raises StepError if too many rows have an error."""
        states.check_errors(self.max_errors)
        yield from states.finish(self.output)


def _parse_output(name: str) -> pa.DataType:
    try:
        found = parse_type(name)
    except TypeNameError as error:
        raise broken(str(error)) from error
    if found not in (pa.string(), pa.large_string()):
        raise broken(f"must be string or large_string, but is {found}; cast it in a step after")
    return found


def _to_table(part: Any) -> pa.Table:
    columns = [pa.array(part[name]).cast(_ANSWER.field(name).type) for name in _ANSWER.names]
    return pa.table(columns, schema=_ANSWER)


def _count(answers: pa.Table, microseconds: int) -> Tally:
    # A reason has its numbers after a colon.
    found = answers[engines.ERROR].drop_null().to_pylist()
    reasons = Counter(reason.partition(":")[0] for reason in found)
    return Tally(
        rows=answers.num_rows,
        prompt_tokens=pc.sum(answers[engines.PROMPT_TOKENS], min_count=0).as_py(),
        generated_tokens=pc.sum(answers[engines.GENERATED_TOKENS], min_count=0).as_py(),
        microseconds=microseconds,
        reasons=dict(sorted(reasons.items())),
    )
