"""The runs of experiments, which `lastmile get --runs` reads from the artifacts store.

An experiment keeps the folders of all its runs in one place of the store, `status.artifactsUri`.
The runtime lists them for `lastmile runs`, and passes its function to this command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dataset_operator.cli.artifacts import locate
from dataset_operator.cli.printing import format_age, print_table
from dataset_operator.cli.stored import has_run
from dataset_operator.documents import Document
from dataset_operator.shapes import read_status
from pipeline_runtime.formatting import format_age_seconds

# Lists the runs below a URI, each as `lastmile runs --json` prints it.
ListRuns = Callable[[str], Sequence[dict[str, Any]]]

_HEADER = ("NAMESPACE", "NAME", "RUN", "PHASE", "TOOK", "SEED", "AGE")


def print_runs(
    list_runs: ListRuns,
    experiments: Sequence[Document],
    storage_root: str | None,
    *,
    as_json: bool,
) -> None:
    """Print the runs of experiments; an experiment that has not run yet has none.

    Args:
        storage_root: replaces the root that the operator recorded.
    """
    started = [each for each in experiments if has_run(read_status(each.get("status")))]
    found = [
        (each["metadata"]["namespace"], run)
        for each in started
        for run in list_runs(locate(each, storage_root)[0])
    ]
    if as_json:
        print(json.dumps([{"namespace": name, **run} for name, run in found], indent=2))
    elif found:
        print_table(_HEADER, (tuple(_list_cells(name, run)) for name, run in found))
    else:
        print("no runs")


def _list_cells(namespace: str, run: dict[str, Any]) -> Iterator[object]:
    summary = run["summary"]
    yield from (namespace, run["experiment"], run["run"], run["phase"])
    yield format_age_seconds(summary["run"]["seconds"]) if summary else None
    yield summary["seeds"]["training"] if summary else None
    yield format_age(run["startedAt"])
