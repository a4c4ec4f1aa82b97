"""The step `generate` beside its bare engine, and beside the stages of `ray.data.llm`.

Each yields Arrow tables with all columns and the text. The first two call the same model on the
same prompts in the same batches. The last two have an engine that answers with the prompt.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.scoring.tables import CPU, PROMPT, TEXT, Clock, Program, Scored
from pipeline_runtime.models.text import open_generator
from pipeline_runtime.models.text.testing import EchoGenerator
from pipeline_runtime.sources import Opening
from pipeline_runtime.steps import engines
from pipeline_runtime.steps.base import BindContext
from pipeline_runtime.steps.binding import bind_step
from pipeline_runtime.steps.engines import OpenedEngine
from pipeline_runtime.steps.generate.model import GenerateStep
from pipeline_runtime.steps.generate.transform import Generate

AROUND: Final = "aroundMicrosPerRow"  # CPU time of the step, without that in the engine
_BATCH_ROWS: Final = 16
_RAY_BATCH_ROWS: Final = 64
_MAX_TOKENS: Final = 8


class TimedEngine:
    """An engine that sums its CPU time, as steps and loops call it."""

    def __init__(self, opened: OpenedEngine) -> None:
        self.sha256, self.note = opened.sha256, opened.note
        self.seconds = 0.0
        self._call = opened.load()

    def load(self) -> TimedEngine:
        """Return the engine."""
        return self

    def __call__(self, table: pa.Table) -> Mapping[str, Any]:
        """Return the answers of a batch."""
        started = time.process_time()
        answers = self._call(table)
        self.seconds += time.process_time() - started
        return answers


@functools.cache
def _open(source: str, schema: pa.Schema) -> tuple[Generate, TimedEngine]:
    """Return the bound step and its engine."""
    step = GenerateStep.model_validate(
        {
            "engine": "Transformers",
            "source": source or "none",
            "prompt": PROMPT,
            "outputs": [{"name": TEXT, "type": "string"}],
            "batchSize": _BATCH_ROWS if source else _RAY_BATCH_ROWS,
            "maxTokens": _MAX_TOKENS,
        },
        strict=False,
    )
    engine = TimedEngine(
        open_generator(step, Opening(storage_root="")) if source else EchoGenerator()
    )
    no_join = cast(Any, None)
    context = BindContext(open_side_table=no_join, open_generator=lambda _: engine)
    bound = bind_step(step, schema, context)
    assert isinstance(bound, Generate)
    return bound, engine


def generate_step(scored: Scored, notes: dict[str, float]) -> Iterator[pa.Table]:
    """Generate by the step; reading is not counted."""
    table = pq.read_table(scored.table).combine_chunks()
    step, engine = _open(scored.language_model or "", table.schema)
    engine.seconds, clock = 0.0, Clock()
    found = step(table)
    notes |= clock.read()
    notes[AROUND] = notes[CPU] - engine.seconds
    yield found


def bare_engine(scored: Scored, notes: dict[str, float]) -> Iterator[pa.Table]:
    """Call the engine in a loop; neither reading nor what makes the prompts is counted."""
    table = pq.read_table(scored.table).combine_chunks()
    step, engine = _open(scored.language_model or "", table.schema)
    prompts = step.template.render(table)
    order = np.argsort(pc.utf8_length(prompts).to_numpy(), kind="stable")  # as the step has it
    keys = pa.array(np.arange(len(prompts), dtype=np.uint64))
    rows = pa.table({engines.KEY: keys, engines.PROMPT: prompts}).take(order)
    clock, texts = Clock(), list[str]()
    for start in range(0, len(order), _BATCH_ROWS):
        texts += engine(rows.slice(start, _BATCH_ROWS))[engines.TEXT]
    notes |= clock.read()
    yield table.append_column(TEXT, pa.array(texts).take(pa.array(np.argsort(order))))


def ray_stages(scored: Scored, _: dict[str, float]) -> Iterator[pa.Table]:
    """Generate as processors of `ray.data.llm` do, with a single stage between the user's two.

    The processor of vLLM has up to three stages more, for chats, tokens and texts.
    """
    import ray.data
    from ray.llm._internal.batch.processor.base import Processor, ProcessorConfig
    from ray.llm._internal.batch.stages.base import StatefulStage, StatefulStageUDF

    class Echo(StatefulStageUDF):
        async def udf(self, rows: Any) -> Any:
            place = self.IDX_IN_BATCH_COLUMN
            for row in rows:
                yield {place: row[place], TEXT: row["prompt"]}

    config = ProcessorConfig(batch_size=_RAY_BATCH_ROWS, concurrency=1)
    processor = Processor(
        config,
        [StatefulStage(fn=Echo)],
        preprocess=lambda row: {"prompt": PROMPT.format_map(row)},
        postprocess=lambda row: row,
    )
    dataset = processor(ray.data.read_parquet(scored.table))
    yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow")


LANGUAGE_PROGRAMS: Final[Mapping[str, Program]] = {
    "generate step": generate_step,
    "bare engine": bare_engine,
    "ray.data.llm": ray_stages,
}
