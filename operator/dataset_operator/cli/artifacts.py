"""`lastmile artifacts`: where a run's checkpoints and report are, and the report itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from dataset_operator.cli.connection import on_cluster
from dataset_operator.cli.failures import explaining
from dataset_operator.cli.options import (
    ContextOption,
    KubeconfigOption,
    NameArgument,
    NamespaceOption,
    Target,
)
from dataset_operator.cli.stored import locate_run
from dataset_operator.documents import Document
from dataset_operator.names import Owner
from pipeline_runtime.config import RuleSet, clean, locate_artifacts, parse_stored

# Fetches the files of a run (URI of the experiment's folder, id of the run) into a folder, and
# reports each file that it skips.
Fetch = Callable[[str, str, Path, Callable[[str], None]], Sequence[Path]]


def artifacts(
    program: typer.Context,
    name: NameArgument,
    download: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Fetch the report and summary there."),
    ] = None,
    storage_root: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Where the store is from here, if elsewhere."),
    ] = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Print where the checkpoints and the report of an experiment are."""
    target = Target(namespace=namespace, context=context, kubeconfig=kubeconfig)
    document = on_cluster(target, lambda cluster: cluster.find(name))
    with explaining():
        uri, run_id = locate(document, storage_root)
        print(f"{clean(uri)}*-{run_id}/")
        if download is None:
            return
        fetch: Fetch = program.obj.fetch_run
        for path in fetch(uri, run_id, download, _warn):
            print(path)


def _warn(line: str) -> None:
    print(line, file=sys.stderr)


def locate(document: Document, storage_root: str | None) -> tuple[str, str]:
    """Return the URI of an experiment's folder, and the id of its current run.

    Args:
        storage_root: replaces the root that the operator recorded, for a store that has another
            address from here.

    Raises:
        UserError: the experiment has no run yet.
    """
    uri, run = locate_run(document)
    if storage_root is not None:
        experiment, _ = parse_stored(document, RuleSet.NONE)
        uri = locate_artifacts(experiment, storage_root, wins=True)
    return uri, Owner.of(document).run_id(run)
