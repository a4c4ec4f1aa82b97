"""One step of a pipeline, which has exactly one kind, and the options of the planner.

The kinds are the folders of `pipeline_runtime.steps`, which `step_registry` finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from pipeline_runtime.config.base import Label, SpecModel
from pipeline_runtime.config.step_model import StepModel
from pipeline_runtime.config.step_registry import load_models


class _NamedStep(SpecModel):
    """The field that steps of all kinds have."""

    name: Label | None = None
    """Name of the step, unique in the pipeline, for people and for `--set`; another name makes no
    other run."""


_KINDS: dict[str, Any] = {folder: (model | None, None) for folder, model in load_models().items()}
_AnyStep: Any = create_model("_AnyStep", __base__=_NamedStep, **_KINDS)


class Step(_AnyStep):
    """One step: exactly one kind, and perhaps a name."""

    def rules(self) -> Iterator[tuple[str, str]]:
        given = [type(config).kind() for config in self.given()]
        if len(given) > 1:
            got = " and ".join(given)
            yield "", f"must have exactly one step kind, got {got}; write each step as a list item"
        elif not given:
            kinds = ", ".join(list_kinds())
            yield "", f"must have exactly one step kind, got none; write one of {kinds}"

    def given(self) -> list[StepModel]:
        """Return the models of the given kinds; one, if the step keeps its rules."""
        values = (getattr(self, folder, None) for folder in load_models())
        return [value for value in values if isinstance(value, StepModel)]

    @property
    def kind(self) -> str:
        """The step's kind as the manifest writes it, such as `antiJoin`."""
        return type(self.config).kind()

    @property
    def config(self) -> StepModel:
        """The model of the step's kind."""
        return self.given()[0]


def list_kinds() -> list[str]:
    """Return the kinds of steps, as a manifest writes them."""
    return [model.kind() for model in load_models().values()]


class DebugOptions(SpecModel):
    """Switches that turn single optimisations off, to compare or to find a fault. None of them
    changes the rows."""

    pushdown: bool = True
    """Predicates prune partitions and row groups."""
    projection: bool = True
    """Only columns that are used are read."""
    late_materialization: bool = True
    """If filters empty many row groups or pages, the other columns are read after filtering."""
    fusion: bool = True
    """Adjacent steps run in the task that reads."""
    broadcast: bool = True
    """Side tables are read once and shared."""
    kernels: bool = True
    """Compiled kernels pad, hash and copy lists of numbers; false turns `pageDecoding` off too."""
    page_decoding: bool = True
    """Compiled kernels, rather than pyarrow, decode numbers and lists of numbers."""
    deduplication: bool = True
    """Columns that a request's rows share are read and processed once per request."""
    prefetch: bool = True
    """The next batch is made while the trainer computes."""
    ready_batches: bool = True
    """Data workers cut and collate the batches; else, or with `preserveOrder`, the trainer does."""
    sparse: bool = True
    """Lists that are mostly padding are sent without it, and padded on the device."""
    batched_calls: bool = True
    """One call asks a data worker for several short chunks."""
    shared_memory: bool = True
    """Data workers that are processes share memory with a trainer on the same machine."""
    read_ahead: bool = True
    """A data worker reads the next rows from a store while it processes the previous ones."""


class PipelineOptions(SpecModel):
    """Options of the planner and the feed; none of them changes the rows."""

    feed: Literal["Auto", "Threads", "Readers", "RayData"] = "Auto"
    """The engine of the training feed; `explain` shows the choice of `Auto` and the reason."""
    preserve_order: bool | None = None
    """The seed fixes the order of batches, and a resumed run repeats it exactly. If absent: true
    for one rank on one machine, otherwise false."""
    rows_per_block: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Largest number of rows in a chunk; derived from the files' row width if absent."""
    compression: Literal["Auto", "None", "lz4", "zstd"] = "Auto"
    """Codec of batches between processes; `Auto` measures codecs once a trainer waits."""
    debug: DebugOptions = Field(default_factory=DebugOptions)
