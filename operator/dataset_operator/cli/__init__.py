"""The commands that need a cluster, of `lastmile` and `kubectl lastmile`.

They join through the entry-point group `lastmile.commands`, if the operator's extra is installed.
`cluster` connects them; importing this package imports neither kopf nor kubernetes, so that
`lastmile --help` stays fast.
"""

from __future__ import annotations

import importlib.util

import typer

from dataset_operator.cli.artifacts import artifacts
from dataset_operator.cli.describe import describe
from dataset_operator.cli.get import get
from dataset_operator.cli.logs import logs
from dataset_operator.cli.operator import app as operator
from dataset_operator.cli.scale import scale
from dataset_operator.cli.submit import submit
from dataset_operator.cli.suspend import resume, stop

_COMMANDS = (submit, get, describe, logs, artifacts, stop, resume, scale)


def join(app: typer.Typer) -> None:
    """Add the commands to the program."""
    if importlib.util.find_spec("kopf") is None or importlib.util.find_spec("kubernetes") is None:
        return
    for command in _COMMANDS:
        app.command()(command)
    app.add_typer(operator, name="operator")
