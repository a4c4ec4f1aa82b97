"""The table and the manifest of a paced run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.simulator.profiles import BATCH_ROWS, RULES, UNIT_ROWS
from pipeline_runtime.sample_data import write_sample_data
from pipeline_runtime.sample_data.options import SampleDataOptions

_TABLE_ROWS = 100_000  # as many epochs as it takes
_NUM_EPOCHS = 1000


def write_table(data: Path) -> Path:
    """Write the table unless it exists; return the storage root of the runs."""
    root = data / f"simulator-{_TABLE_ROWS}-{UNIT_ROWS}"
    options = SampleDataOptions(
        rows=_TABLE_ROWS, rows_per_group=UNIT_ROWS, days=1, compression="none"
    )
    write_sample_data(root, options)
    return root.absolute()


def build_manifest(pace: Path) -> dict[str, Any]:
    """Return the manifest of a paced run."""
    step = {
        "function": "benchmarks.simulator.paced:work",
        "options": {"pace": str(pace)},
        "inputColumns": ["clicked"],
        "outputColumns": [{"name": "clicked", "type": "bool"}],
    }
    training = {
        "entrypoint": "benchmarks.simulator.paced:train",
        "config": {"pace": str(pace)},
        "batchSize": BATCH_ROWS,
        "epochs": _NUM_EPOCHS,
        "labelColumn": "clicked",
        "columns": ["dense_00", "clicked"],
        "shuffle": {"unit": "None"},
    }
    return {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "simulator"},
        "spec": {
            "dataset": {"parquet": {"uri": "impressions/"}, "rowKey": ["_lastmile_row_id"]},
            "pipeline": [{"map": step}],
            "pipelineOptions": {"rowsPerBlock": UNIT_ROWS},
            "training": training,
            "dataWorkers": {"minReplicas": RULES.min_workers, "maxReplicas": RULES.max_workers},
        },
    }
