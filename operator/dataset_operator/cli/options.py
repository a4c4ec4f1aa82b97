"""Options that several commands share, named as kubectl names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from pipeline_runtime.config import complete_override

NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace; the context's if absent."),
]
AllNamespacesOption = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="In all namespaces.")
]
ContextOption = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; its current if absent.")
]
KubeconfigOption = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="Kubeconfig; KUBECONFIG or ~/.kube/config if absent."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a field (repeatable).",
        autocompletion=complete_override,
    ),
]
NameArgument = Annotated[str, typer.Argument(help="The experiment.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Cluster and namespace of a command, as the user named them."""

    namespace: str | None
    context: str | None
    kubeconfig: str | None
