"""The operator's commands of `lastmile` and `kubectl lastmile`: for a cluster, and `simulate`.

They join through the entry-point group `lastmile.commands`; those for a cluster, which `connection`
connects, if the operator's extra is installed. What the runtime lends them is the context's `obj`.
A command's module is imported when the command is called, so that `lastmile --help` stays fast.
"""

from __future__ import annotations

import importlib.util
from typing import Protocol

_CLUSTER_COMMANDS = {
    "submit": ("submit:submit", "Check manifests, and apply them to the cluster."),
    "get": ("get:get", "Show experiments: how far they are, and how busy their GPUs."),
    "describe": ("describe:describe", "Show how an experiment stands, and what it waits for."),
    "logs": ("logs:logs", "Print the log of an experiment's driver, or of its pods."),
    "artifacts": ("artifacts:artifacts", "Print where checkpoints and report are, or fetch them."),
    "stop": ("suspend:stop", "Stop with a checkpoint, and give the cluster back."),
    "resume": ("suspend:resume", "Let a stopped experiment go on from its last checkpoint."),
    "scale": ("scale:scale", "Change how many data workers a running experiment has."),
    "operator": ("operator:app", "Reconcile experiments until SIGTERM."),
}


class Program(Protocol):
    """The program that commands are added to."""

    def add(self, name: str, place: str, summary: str) -> None:
        """Add a command, whose function is at `place` (module:name), with a line of help."""
        ...


def join(program: Program) -> None:
    """Add the commands to the program."""
    program.add(
        "simulate",
        f"{__name__}.simulate:simulate",
        "Estimate how many data workers a run needs, and its cost.",
    )
    if importlib.util.find_spec("kopf") is None or importlib.util.find_spec("kubernetes") is None:
        return
    for name, (place, summary) in _CLUSTER_COMMANDS.items():
        program.add(name, f"{__name__}.{place}", summary)
