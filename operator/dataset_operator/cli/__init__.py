"""The operator's commands of `lastmile` and `kubectl lastmile`: for a cluster, and `simulate`.

They join through the entry-point group `lastmile.commands`; those for a cluster, which `cluster`
connects, if the operator's extra is installed. What the runtime lends them is the context's `obj`.
Importing this package imports neither kopf nor kubernetes, so that `lastmile --help` stays fast.
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
from dataset_operator.cli.simulate import simulate
from dataset_operator.cli.submit import submit
from dataset_operator.cli.suspend import resume, stop

_COMMANDS = (submit, get, describe, logs, artifacts, stop, resume, scale)


def join(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(simulate)
    if importlib.util.find_spec("kopf") is None or importlib.util.find_spec("kubernetes") is None:
        return
    for command in _COMMANDS:
        app.command()(command)
    app.add_typer(operator, name="operator")
