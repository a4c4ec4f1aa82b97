"""The two levels of last-mile work, each once as a manifest and as constants for the peers.

Lastmile runs the manifest; `arrow_work` and `stock_loader` do the same by hand. Two kernels are
shared on purpose, since a peer with another hash would keep other rows: `hashing.keep_mask` chooses
the negatives and `hashing.bucket_of` computes the buckets. The code around them is each loader's.

    none    all columns that convert to tensors unchanged
    heavy   the model's columns: spam users out, label derived, negatives downsampled, weighted,
            nulls filled, the sequence padded, categorical ids hashed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pipeline_runtime.config import DatasetExperiment, parse_experiment
from pipeline_runtime.sample_data.options import SampleDataOptions
from pipeline_runtime.spelling import to_options

LEVELS: Final = ("none", "heavy")
# Layouts of files: a row per impression, or a row per request with lists of impressions.
LAYOUTS: Final = ("flat", "nested")
# Forms of batches: every row with its user's columns, or these columns once per request.
FORMS: Final = ("expanded", "deduplicated")
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
    {
        *(REQUEST_KEY, SPAM_KEY, "user_age_days", *TEXTS),
        *(SEQUENCE, "user_sequence_actions"),
    }
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

# Options with which Ray Data feeds Lastmile (its plain path); all others need no Ray.
RAY_DATA: Final = ("feed", "RayData")
FUSION_OFF: Final = ("fusion", False)  # each step in separate tasks

# The same model at every level: it uses columns that both levels deliver.
MODEL_CONFIG: Final[dict[str, Any]] = {
    "dense": list(DENSE),
    "categorical": [*WHOLE_CATEGORIES, "item_id", "position"],
    "sequences": [{"column": SEQUENCE, "target": "item_id"}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Work of one level on one table of sample data.

    Args:
        level: one of `LEVELS`.
        root: folder of the sample data; relative paths are relative to the working directory.
        layout: layout of its files, one of `LAYOUTS`.
        form: form of the batches, one of `FORMS`.
        options: `spec.pipelineOptions` that differ from the default; for Lastmile alone.
        where: rows of the table that are read, as `spec.dataset.where`; for Lastmile alone.
        shuffle: `spec.training.shuffle.unit`; for Lastmile alone.
        batch_size: rows of a batch; stock Ray Data has the default alone.
        keep: condition of a filter before all other steps; for Lastmile alone.
        more_columns: columns of batches besides those of the level; for Lastmile alone.
        declares_requests: the manifest names the key of requests in flat files; Lastmile alone.
    """

    level: str
    root: str
    layout: str = "flat"
    form: str = "expanded"
    options: tuple[tuple[str, bool | str], ...] = ()
    where: str | None = None
    shuffle: str = "None"
    batch_size: int = BATCH_SIZE
    keep: str | None = None
    more_columns: tuple[str, ...] = ()
    declares_requests: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of batches."""
        columns = HEAVY_COLUMNS if self.level == "heavy" else PLAIN_COLUMNS
        return (*columns, *self.more_columns)

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns that a peer reads from the files: only those that it uses."""
        if self.level != "heavy":
            return PLAIN_COLUMNS
        return (*KEPT_COLUMNS, SEQUENCE, *HASHED, *_HEAVY_INPUTS, ROW_KEY)

    @property
    def is_deduplicated(self) -> bool:
        """Return whether batches have the columns of a request once."""
        return self.form == "deduplicated"

    @property
    def needs_ray(self) -> bool:
        """Return whether Lastmile runs this work on Ray."""
        return RAY_DATA in self.options or FUSION_OFF in self.options

    @property
    def label_column(self) -> str:
        return "label" if self.level == "heavy" else "clicked"

    @property
    def weight_column(self) -> str | None:
        return "sample_weight" if self.level == "heavy" else None


def build_experiment(workload: Workload) -> DatasetExperiment:
    """Build the manifest for Lastmile, as `lastmile run` would read it."""
    training: dict[str, Any] = {
        "batchSize": workload.batch_size,
        "columns": list(workload.columns),
        "labelColumn": workload.label_column,
        "deduplicated": workload.is_deduplicated,
        "shuffle": {"unit": workload.shuffle},
    }
    if workload.weight_column:
        training["weightColumn"] = workload.weight_column
    return parse_experiment(
        {
            "apiVersion": "experiments.lastmile.dev/v1alpha1",
            "kind": "DatasetExperiment",
            "metadata": {"name": f"benchmark-{workload.level}"},
            "spec": {
                "dataset": build_dataset(workload),
                "pipeline": build_steps(workload),
                "pipelineOptions": build_options(workload),
                "training": training,
            },
        }
    )


def build_options(workload: Workload) -> dict[str, Any]:
    """Return the manifest's `spec.pipelineOptions`.

    The benchmarks compare loaders by the rows that they have ready, in any order.
    """
    return {"preserveOrder": False} | to_options(dict(workload.options))


def build_dataset(workload: Workload) -> dict[str, Any]:
    """Return the manifest's `spec.dataset`."""
    dataset: dict[str, Any] = {"parquet": {"uri": "impressions/"}, "rowKey": [ROW_KEY]}
    declares_requests = workload.is_deduplicated or workload.declares_requests
    if declares_requests and workload.layout == "flat":  # the layout of a nested file defines it
        dataset |= {"requestKey": REQUEST_KEY, "requestColumns": sorted(ONCE - {REQUEST_KEY})}
    if workload.where:
        dataset["where"] = workload.where
    return dataset


def build_steps(workload: Workload) -> list[Any]:
    """Return the manifest's `spec.pipeline`."""
    steps: list[Any] = [{"filter": {"where": workload.keep}}] if workload.keep else []
    return [*steps, *_build_heavy_steps()] if workload.level == "heavy" else steps


def _build_heavy_steps() -> list[Any]:
    label = {"name": "label", "expression": "clicked or coalesce(saves, 0) > 0"}
    by = f"case when conversion_delay_hours is not null then {CONVERSION_WEIGHT} else 1.0 end"
    return [
        {"antiJoin": {"parquet": {"uri": "spam_users/"}, "keys": [SPAM_KEY]}},
        {"derive": {"columns": [label]}},
        {
            "downsample": {
                "where": "not label",
                "keepPercent": KEEP_PERCENT,
                "seed": DOWNSAMPLE_SEED,
                "weightColumn": "sample_weight",
            }
        },
        {"weight": {"column": "sample_weight", "by": by}},
        {"fillNull": {"columns": _build_fillers()}},
        {"padSequence": {"columns": [SEQUENCE], "length": SEQUENCE_LENGTH}},
        {"hashBucket": {"columns": list(HASHED), "buckets": NUM_BUCKETS, "seed": HASH_SEED}},
    ]


def _build_fillers() -> list[dict[str, Any]]:
    values = {**dict.fromkeys(TEXTS, UNKNOWN_TEXT), **dict.fromkeys(CATEGORIES_WITH_NULLS, 0)}
    return [{"name": name, "value": value} for name, value in values.items()]


# A day of the sample data is one file. With fewer rows there are fewer days, not smaller files.
_ROWS_PER_DAY: Final = 125_000
_MAX_DAYS: Final = 8


def sample_options(rows: int) -> SampleDataOptions:
    """Return the options of sample data with that many rows; the command's default is a million."""
    return SampleDataOptions(rows=rows, days=max(1, min(_MAX_DAYS, rows // _ROWS_PER_DAY)))
