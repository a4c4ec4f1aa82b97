"""The two levels of last-mile work, each once as a pipeline and as constants for the peers.

Lastmile runs the pipeline; `row_groups` and `stock_loader` do the same by hand.

    none    all columns that convert to tensors unchanged
    heavy   the model's columns: spam users out, label derived, negatives downsampled, weighted,
            nulls filled, the sequence padded, categorical ids hashed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pipeline_runtime import Pipeline
from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.sample_data.options import SampleDataOptions

LEVELS: Final = ("none", "heavy")
BATCH_SIZE: Final = 4096  # rows; the spec's default

NUM_DENSE: Final = 20
NUM_CATEGORIES: Final = 16
DENSE: Final = tuple(f"dense_{index:02d}" for index in range(NUM_DENSE))
CATEGORIES: Final = tuple(f"cat_{index:02d}" for index in range(NUM_CATEGORIES))
# Integer tensors have no nulls, so columns of ids with nulls need work before they convert.
CATEGORIES_WITH_NULLS: Final = ("cat_00", "cat_06", "cat_11", "cat_14")
WHOLE_CATEGORIES: Final = tuple(n for n in CATEGORIES if n not in CATEGORIES_WITH_NULLS)
TEXTS: Final = ("user_country", "device")
SEQUENCE: Final = "user_sequence"

# The columns that identify a delivered row: `position` counts within a request.
ROW_ID_COLUMNS: Final = ("request_id", "position")
# The column that identifies a row for sampling.
ROW_KEY: Final = "_lastmile_row_id"
SPAM_KEY: Final = "user_id"

KEEP_PERCENT: Final = 25  # of the negatives, so that about one row in three remains
DOWNSAMPLE_SEED: Final = 17
CONVERSION_WEIGHT: Final = 2.0  # a click that led to a conversion counts twice
SEQUENCE_LENGTH: Final = 128  # between the shortest (100) and the longest (200) list
NUM_BUCKETS: Final = 100_000
HASH_SEED: Final = 0  # the spec's default
UNKNOWN_TEXT: Final = "unknown"

# The columns that nested files have once per request: the user's, and the request's own.
REQUEST_KEY: Final = "request_id"
ONCE: Final = frozenset(
    {REQUEST_KEY, SPAM_KEY, "user_age_days", *TEXTS, SEQUENCE, "user_sequence_actions"}
)

HASHED: Final = (*CATEGORIES, *TEXTS)
PLAIN_COLUMNS: Final = (
    *ROW_ID_COLUMNS,
    *("timestamp", SPAM_KEY, "user_age_days", SEQUENCE, "user_sequence_actions", "item_id"),
    *DENSE,
    *WHOLE_CATEGORIES,
    *("clicked", "conversion_delay_hours", "dwell_seconds"),
)
KEPT_COLUMNS: Final = (*ROW_ID_COLUMNS, "item_id", *DENSE)  # heavy work delivers them unchanged
HEAVY_COLUMNS: Final = (*KEPT_COLUMNS, SEQUENCE, *HASHED, "label", "sample_weight")
_HEAVY_INPUTS: Final = (SPAM_KEY, "clicked", "saves", "conversion_delay_hours")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Work of one level on one table of sample data.

    Args:
        level: one of `LEVELS`.
        root: folder of the sample data; relative paths are relative to the working directory.
        layout: `flat` files have a row per impression, `nested` ones a row per request with lists
            of impressions.
        form: `expanded` batches have every row with its user's columns, `deduplicated` ones these
            columns once per request, which only nested files have here.
        options: `spec.pipelineOptions` that differ from the default; for Lastmile alone.
        where: rows of the table that are read, as `spec.dataset.where`; for Lastmile alone.
        batch_size: rows of a batch; Ray Data has the default alone.
    """

    level: str
    root: str
    layout: str = "flat"
    form: str = "expanded"
    options: Mapping[str, bool] = field(default_factory=dict)
    where: str | None = None
    batch_size: int = BATCH_SIZE

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of batches."""
        return HEAVY_COLUMNS if self.level == "heavy" else PLAIN_COLUMNS

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns that a peer reads from the files: only those that it uses."""
        if self.level != "heavy":
            return PLAIN_COLUMNS
        return (*KEPT_COLUMNS, SEQUENCE, *HASHED, *_HEAVY_INPUTS, ROW_KEY)

    @property
    def is_deduplicated(self) -> bool:
        return self.form == "deduplicated"

    @property
    def weight_column(self) -> str | None:
        return "sample_weight" if self.level == "heavy" else None


def build_pipeline(workload: Workload) -> Pipeline:
    """Return the work as users of Lastmile write it.

    The benchmarks compare loaders by the rows that they have ready, in any order.
    """
    pipeline = Pipeline.read_parquet("impressions/", row_key=ROW_KEY, where=workload.where)
    pipeline = pipeline.with_options(preserve_order=False, **workload.options)
    if workload.level == "none":
        return pipeline
    by = f"case when conversion_delay_hours is not null then {CONVERSION_WEIGHT} else 1.0 end"
    return (
        pipeline.anti_join("spam_users/", on=SPAM_KEY)
        .derive(label="clicked or coalesce(saves, 0) > 0")
        .downsample(
            KEEP_PERCENT, where="not label", seed=DOWNSAMPLE_SEED, weight_column="sample_weight"
        )
        .weight("sample_weight", by=by)
        .fill_null(dict.fromkeys(TEXTS, UNKNOWN_TEXT) | dict.fromkeys(CATEGORIES_WITH_NULLS, 0))
        .pad_sequence(SEQUENCE, length=SEQUENCE_LENGTH)
        .hash_bucket(*HASHED, buckets=NUM_BUCKETS, seed=HASH_SEED)
    )


def build_experiment(workload: Workload) -> DatasetExperiment:
    """Return the same with a training, as `lastmile run` reads it from a manifest."""
    return build_pipeline(workload).experiment(
        f"benchmark-{workload.level}",
        batch_size=workload.batch_size,
        columns=list(workload.columns),
        label_column="label" if workload.level == "heavy" else "clicked",
        weight_column=workload.weight_column,
        deduplicated=workload.is_deduplicated,
        shuffle={"unit": "None"},
    )


# A day of the sample data is one file. With fewer rows there are fewer days, not smaller files.
_ROWS_PER_DAY: Final = 125_000
_MAX_DAYS: Final = 8


def sample_options(rows: int) -> SampleDataOptions:
    """Return the options of sample data with that many rows; the command's default is a million."""
    return SampleDataOptions(rows=rows, days=max(1, min(_MAX_DAYS, rows // _ROWS_PER_DAY)))
