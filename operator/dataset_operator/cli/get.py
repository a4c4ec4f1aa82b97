"""`lastmile get`: experiments as a table, or as the API server has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml

from dataset_operator.cli.connection import on_cluster
from dataset_operator.cli.failures import explaining
from dataset_operator.cli.options import (
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Target,
)
from dataset_operator.cli.printing import format_age, format_cost, print_table
from dataset_operator.cli.run_lists import print_runs
from dataset_operator.documents import Document
from dataset_operator.shapes import read_status
from pipeline_runtime.config import TrainerStatus


class Output(StrEnum):
    """Formats of printed objects."""

    JSON = "json"
    YAML = "yaml"


# As the CRD's printer columns.
_HEADER = (
    "NAME",
    "PHASE",
    "GPUS",
    "WORKERS",
    "DESIRED",
    "GPU%",
    "WAIT%",
    "PROGRESS",
    "ROWS",
    "ROWS/S",
    "ETA",
    "COST",
    "AGE",
)
# Columns that are shown only if an experiment has a value.
_OPTIONAL = {"ROWS", "ROWS/S", "ETA", "COST"}


def get(
    program: typer.Context,
    name: Annotated[str | None, typer.Argument(help="One experiment; all if absent.")] = None,
    namespace: NamespaceOption = None,
    all_namespaces: AllNamespacesOption = False,
    output: Annotated[
        Output | None, typer.Option("--output", "-o", help="A table if absent.")
    ] = None,
    runs: Annotated[
        bool, typer.Option("--runs", help="List their runs in the store, with their names.")
    ] = False,
    storage_root: Annotated[
        str | None,
        typer.Option(metavar="URI", help="With --runs: where the store is from here."),
    ] = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Show experiments: how far they are, and how busy their GPUs are."""
    if name and all_namespaces:
        raise typer.BadParameter("a name is looked for in one namespace; leave -A out")
    target = Target(namespace=namespace, context=context, kubeconfig=kubeconfig)
    if runs and output is Output.YAML:
        raise typer.BadParameter("must be json with --runs, got yaml", param_hint="--output")
    scope = "" if all_namespaces else None
    if name is not None:
        found = [on_cluster(target, lambda cluster: cluster.find(name))]
    else:
        found = on_cluster(target, lambda cluster: cluster.list_experiments(scope))
    if runs:
        with explaining():
            print_runs(program.obj.list_runs, found, storage_root, as_json=output is not None)
        return
    every = {"apiVersion": "v1", "kind": "List", "items": found}
    whole = every if name is None else found[0]
    _print(found, whole, output, with_namespace=all_namespaces)


def _print(
    found: Sequence[Document],
    whole: Document,
    output: Output | None,
    *,
    with_namespace: bool = False,
) -> None:
    if output is not None:
        for document in found:
            document["metadata"].pop("managedFields", None)  # as kubectl: of no use to a reader
        print(_FORMATS[output](whole).rstrip())
    elif not found:
        print("no experiments")
    else:
        rows = [build_row(document) for document in found]
        header = ("NAMESPACE", *_HEADER)
        shown = [
            index
            for index, name in enumerate(header)
            if (index or with_namespace)
            and (name not in _OPTIONAL or any(row[index] is not None for row in rows))
        ]
        print_table([header[i] for i in shown], [[row[i] for i in shown] for row in rows])


_FORMATS = {
    Output.JSON: lambda whole: json.dumps(whole, indent=2),
    Output.YAML: lambda whole: yaml.safe_dump(whole, sort_keys=False, allow_unicode=True),
}


def build_row(document: Document) -> list[Any]:
    """Return an experiment's namespace, then its columns."""
    metadata, status = document["metadata"], read_status(document.get("status"))
    workers, trainer = status.data_workers, status.trainer or TrainerStatus()
    rate = trainer.samples_per_second
    return [
        metadata["namespace"],
        metadata["name"],
        status.phase or "Pending",
        status.gpus,
        workers.current_replicas if workers else None,
        workers.desired_replicas if workers else None,
        trainer.gpu_utilization_percent,
        trainer.production_wait_percent,
        trainer.progress_percent,
        status.output.rows if status.output else None,
        None if rate is None else f"{float(rate):,.0f}",
        trainer.estimated_remaining,
        format_cost(status.usage),
        format_age(metadata.get("creationTimestamp")),
    ]
