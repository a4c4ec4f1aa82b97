"""`lastmile describe`: one screen with the state of an experiment, its reason, and advice."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import typer

from dataset_operator.api import EXPERIMENT_LABEL, ROLE_LABEL, SCALING_ACTIVE, SCALING_LIMITED
from dataset_operator.cli.connection import Cluster, on_cluster
from dataset_operator.cli.failures import explaining
from dataset_operator.cli.next_steps import advise
from dataset_operator.cli.options import (
    ContextOption,
    KubeconfigOption,
    NameArgument,
    NamespaceOption,
    Target,
)
from dataset_operator.cli.printing import (
    format_age,
    format_cost,
    get_columns,
    print_table,
)
from dataset_operator.cli.stored import FromOption, RunOption, StoredRun, open_stored
from dataset_operator.cli.workers import explain_workers
from dataset_operator.documents import Document
from dataset_operator.headline import find_headline
from dataset_operator.names import Owner
from dataset_operator.remedies import advise_on_end
from dataset_operator.shapes import read_status
from pipeline_runtime.config import (
    Condition,
    ExperimentStatus,
    MaterializationStatus,
    ModelStatus,
    OutputStatus,
    TrainerStatus,
    UsageStatus,
    clean,
)
from pipeline_runtime.formatting import format_age_seconds

# To fit one screen: the newest events, and the pods that are not ready before the others.
_MAX_EVENTS = 8
_MAX_PODS = 12
_LABEL_CHARS = 11
_HOUR_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An experiment with its pods and events."""

    document: Document
    pods: Sequence[Document]
    events: Sequence[Document]
    note: str = ""

    @cached_property
    def status(self) -> ExperimentStatus:
        """The experiment's status."""
        return read_status(self.document.get("status"))


def describe(
    program: typer.Context,
    name: NameArgument,
    run: RunOption = None,
    place: FromOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Show how an experiment stands, what it waits for and why, and what to do next."""
    if place is not None:
        _print(_read(program.obj.open_history(place, run)))
        return
    target = Target(namespace=namespace, context=context, kubeconfig=kubeconfig)
    picture = on_cluster(target, lambda cluster: _look(cluster, name))
    with explaining():
        if run is not None:
            _print(_read(open_stored(program, picture.document, run)))
        else:
            _print(_look_back(program, picture))


def _read(stored: StoredRun) -> Picture:
    """Read a run as it was when its cluster was deleted."""
    return Picture(document=stored.experiment(), pods=stored.pods(), events=stored.events())


def _look_back(program: typer.Context, picture: Picture) -> Picture:
    """Add the stored pods and events of a cluster that no longer exists.

    The API server keeps events for an hour only.
    """
    status = picture.status
    is_kept = status.history is not None and status.history.state == "Kept"
    if not is_kept or picture.pods or status.run is None or status.artifacts_uri is None:
        return picture
    run_id = Owner.of(picture.document).run_id(status.run)
    pods, events, problem = program.obj.look_back(status.artifacts_uri, run_id)
    if problem is not None:
        why = f"the store, which has the pods and events, cannot be read from here: {problem}"
        return replace(picture, note=why)
    known = {event["metadata"].get("uid") for event in picture.events}
    older = [event for event in events if event["metadata"].get("uid") not in known]
    return replace(picture, pods=pods, events=[*older, *picture.events])


async def _look(cluster: Cluster, name: str) -> Picture:
    document = await cluster.find(name)
    kube, namespace = cluster.kube, cluster.namespace
    about = f"involvedObject.uid={document['metadata']['uid']}"
    pods, events = await asyncio.gather(
        kube.list_objects("Pod", namespace, f"{EXPERIMENT_LABEL}={name}"),
        kube.list_objects("Event", namespace, "", fields=about),
    )
    return Picture(document=document, pods=pods, events=events)


def _print(picture: Picture) -> None:
    columns, status = get_columns(), picture.status
    for label, value in build_summary(picture.document, status):
        print(wrap_line(label, value, columns))
    name = picture.document["metadata"]["name"]
    _print_section(
        ("CONDITION", "STATUS", "REASON", "AGE", "MESSAGE"),
        [
            (c.type, c.status, c.reason, format_age(c.last_transition_time), _explain(c, name))
            for c in status.conditions
        ],
    )
    _print_section(("POD", "ROLE", "READY", "STATUS", "AGE"), build_pod_rows(picture.pods))
    _print_section(
        ("EVENT", "TYPE", "AGE", "MESSAGE"),
        [
            (
                e["reason"],
                e["type"],
                format_age(_time_of(e)),
                _line(str(e.get("message", "")), str(e["reason"]), name),
            )
            for e in sorted(picture.events, key=_place_of)[-_MAX_EVENTS:]
        ],
    )
    if picture.note:
        print(f"\n{clean(picture.note)}")


def wrap_line(label: str, value: str, columns: int) -> str:
    """Wrap a label and its value to a number of columns; long words are not broken."""
    head = f"{label + ':':{_LABEL_CHARS}} "
    return textwrap.fill(
        clean(" ".join(value.split())),
        width=columns,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _explain(condition: Condition, name: str) -> str:
    """Return a condition's message; empty for scaling, which the line `Workers` describes."""
    if condition.type in (SCALING_ACTIVE, SCALING_LIMITED):
        return ""
    return _line(condition.message, condition.reason, name)


def _print_section(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        print()
        print_table(header, rows)


def build_summary(document: Document, status: ExperimentStatus) -> Iterator[tuple[str, str]]:
    """Yield labels and values, the most important first."""
    metadata = document["metadata"]
    yield "Experiment", f"{metadata['namespace']}/{metadata['name']}"
    yield "Age", format_age(metadata.get("creationTimestamp"))
    yield "Phase", _describe_phase(document, status)
    yield "Next", advise(document, status)
    if status.run is not None:
        limit = document["spec"].get("backoffLimit")
        failures = f"{status.failures or 0}" + (f" of {limit}" if limit is not None else "")
        run = f"{status.run} ({status.run_hash})"
        yield "Run", f"{run}, attempt {status.attempt or 0}, failures {failures}"
    yield from explain_workers(document, status)
    if trainer := status.trainer:
        is_writing = document["spec"].get("output") is not None
        yield "Writing" if is_writing else "Training", ", ".join(_describe_training(trainer))
    if output := status.output:
        yield "Table", _describe_output(output)
    if kept := status.materialization:
        yield "Kept rows", _describe_kept(kept)
    for read in status.snapshots:
        yield "Read", f"{read.catalog}.{read.table} at snapshot {read.snapshot_id}"
    for model in status.models:
        yield "Model", _describe_model(model)
    for metric in trainer.metrics if trainer else ():
        yield f"  {metric.name}", metric.value
    if usage := status.usage:
        yield "Used", ", ".join(_describe_usage(usage))


def _describe_model(model: ModelStatus) -> str:
    origin = "/".join(part for part in (model.experiment, model.run, model.file) if part)
    return f"{origin}, sha256 {model.sha256[:12]}"


def _describe_phase(document: Document, status: ExperimentStatus) -> str:
    if "deletionTimestamp" in document["metadata"]:
        return "Deleting"
    headline = find_headline(status)
    phase, name = status.phase or "Pending", document["metadata"]["name"]
    return f"{phase}: {_line(headline.message, headline.reason, name)}" if headline else phase


def _describe_training(trainer: TrainerStatus) -> Iterator[str]:
    if (done := trainer.progress_percent) is not None:
        yield f"{done} %"
    if (left := trainer.estimated_remaining_seconds) is not None:
        yield f"{format_age_seconds(left)} left"
    if (rate := trainer.samples_per_second) is not None:
        yield f"{float(rate):,.0f} rows/s"
    if (busy := trainer.gpu_utilization_percent) is not None:
        yield f"GPUs busy {busy} %"
    if (waited := trainer.production_wait_percent) is not None:
        yield f"waiting for data {waited} %"


def _describe_output(output: OutputStatus) -> str:
    parts = [f"{output.rows:,} rows", f"{output.files:,} files", f"{output.bytes:,} bytes"]
    if output.partitions is not None:
        done = output.complete_partitions or 0
        parts.append(f"{done:,} of {output.partitions:,} partitions complete")
    if output.snapshot_id is not None:
        parts.append(f"snapshot {output.snapshot_id}")
    return ", ".join(parts)


def _describe_kept(kept: MaterializationStatus) -> str:
    done = f"{kept.complete_partitions:,} of {kept.partitions:,} partitions"
    at = f" at snapshot {kept.snapshot_id}" if kept.snapshot_id is not None else ""
    return f"{kept.state.lower()}; {done} in {kept.catalog}.{kept.table}{at}"


def _describe_usage(usage: UsageStatus) -> Iterator[str]:
    """Yield the hours of the current run, and the idle share of the measured GPU time."""
    if usage.gpu_seconds:
        measured = usage.gpu_measured_seconds
        idle = f" ({usage.gpu_idle_seconds / measured:.0%} idle)" if measured else ""
        yield f"{usage.gpu_seconds / _HOUR_SECONDS:,.1f} GPU hours{idle}"
    yield f"{usage.data_worker_seconds / _HOUR_SECONDS:,.1f} data worker hours"
    if cost := format_cost(usage):
        yield cost


def build_pod_rows(pods: Sequence[Document]) -> list[tuple[str, ...]]:
    """Return name, role, ready, status and age of pods, unready ones first, cut to one screen."""
    rows = sorted(map(_build_pod_row, pods), key=lambda row: (row[2] == "yes", row[1], row[0]))
    if len(rows) <= _MAX_PODS:
        return rows
    hidden = len(rows) - _MAX_PODS
    return [*rows[:_MAX_PODS], (f"and {hidden} more", "", "", "", "")]


def _build_pod_row(pod: Document) -> tuple[str, ...]:
    metadata, status = pod["metadata"], pod.get("status", {})
    conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
    return (
        metadata["name"],
        metadata.get("labels", {}).get(ROLE_LABEL, ""),
        "yes" if conditions.get("Ready") == "True" else "no",
        _find_pod_state(pod),
        format_age(metadata.get("creationTimestamp")),
    )


def _find_pod_state(pod: Document) -> str:
    """Return the status as kubectl shows it: why a container waits or ended, else the phase."""
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    status = pod.get("status", {})
    for container in (
        *status.get("initContainerStatuses", ()),
        *status.get("containerStatuses", ()),
    ):
        state = container.get("state", {})
        why = state.get("waiting") or (state.get("terminated") if not container["ready"] else None)
        if why and why.get("reason") not in (None, "Completed"):
            return str(why["reason"])
    return str(status.get("phase", "Unknown"))


def _time_of(event: Document) -> str:
    return str(event.get("lastTimestamp") or event["metadata"]["creationTimestamp"])


def _place_of(event: Document) -> tuple[str, int]:
    # Times are whole seconds, so sort equal ones by version (comparable since Kubernetes 1.35).
    return _time_of(event), int(event["metadata"]["resourceVersion"])


def _line(message: str, reason: str, name: str) -> str:
    """Return the message on one line, without the advice, which the line `Next` gives."""
    line = " ".join(message.split())
    advice = advise_on_end(reason, name)
    return line.replace(f"; {advice}", "", 1) if advice else line
