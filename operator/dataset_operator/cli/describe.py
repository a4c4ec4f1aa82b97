"""`lastmile describe`: one screen with the state of an experiment, its reason, and advice."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    format_age_seconds,
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
from pipeline_runtime.config import clean

# To fit one screen: the newest events, and the pods that are not ready before the others.
_MAX_EVENTS = 8
_MAX_PODS = 12
_LABEL_CHARS = 11
_HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An experiment and what belongs to it."""

    document: Document
    pods: Sequence[Document]
    events: Sequence[Document]
    note: str = ""


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
    history = (picture.document.get("status") or {}).get("history") or {}
    if history.get("state") != "Kept" or picture.pods:
        return picture
    status, owner = picture.document["status"], Owner.of(picture.document)
    run_id = owner.run_id(status["run"])
    pods, events, problem = program.obj.look_back(status["artifactsUri"], run_id)
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
    columns = get_columns()
    for label, value in build_summary(picture.document):
        print(wrap_line(label, value, columns))
    name = picture.document["metadata"]["name"]
    conditions = (picture.document.get("status") or {}).get("conditions") or ()
    _print_section(
        ("CONDITION", "STATUS", "REASON", "AGE", "MESSAGE"),
        [
            (c["type"], c["status"], c["reason"], _age_of(c), _tell_condition(c, name))
            for c in conditions
        ],
    )
    _print_section(("POD", "ROLE", "READY", "STATUS", "AGE"), build_pod_rows(picture.pods))
    _print_section(
        ("EVENT", "TYPE", "AGE", "MESSAGE"),
        [
            (e["reason"], e["type"], format_age(_time_of(e)), _line(e, name))
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


def _tell_condition(condition: Mapping[str, Any], name: str) -> str:
    """Return a condition's message; empty for scaling, which the line `Workers` describes."""
    is_said = condition["type"] in (SCALING_ACTIVE, SCALING_LIMITED)
    return "" if is_said else _line(condition, name)


def _print_section(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        print()
        print_table(header, rows)


def build_summary(document: Document) -> Iterator[tuple[str, str]]:
    """Yield labels and values, the most important first."""
    metadata, status = document["metadata"], document.get("status") or {}
    yield "Experiment", f"{metadata['namespace']}/{metadata['name']}"
    yield "Age", format_age(metadata.get("creationTimestamp"))
    yield "Phase", _describe_phase(document)
    yield "Next", advise(document)
    if "run" in status:
        limit = document["spec"].get("backoffLimit")
        failures = f"{status.get('failures', 0)}" + (f" of {limit}" if limit is not None else "")
        run = f"{status['run']} ({status.get('runHash')})"
        yield "Run", f"{run}, attempt {status.get('attempt', 0)}, failures {failures}"
    yield from explain_workers(document)
    if trainer := status.get("trainer"):
        is_writing = document["spec"].get("output") is not None
        yield "Writing" if is_writing else "Training", ", ".join(_describe_training(trainer))
    if output := status.get("output"):
        yield "Table", _describe_output(output)
    if kept := status.get("materialization"):
        yield "Kept rows", _describe_kept(kept)
    for read in status.get("snapshots") or ():
        yield "Read", f"{read['catalog']}.{read['table']} at snapshot {read['snapshotId']}"
    for metric in (status.get("trainer") or {}).get("metrics") or ():
        yield f"  {metric['name']}", metric["value"]
    if usage := status.get("usage"):
        yield "Used", ", ".join(_describe_usage(usage))


def _describe_phase(document: Document) -> str:
    if "deletionTimestamp" in document["metadata"]:
        return "Deleting"
    status = document.get("status") or {}
    headline = find_headline(status)
    phase, name = status.get("phase") or "Pending", document["metadata"]["name"]
    return f"{phase}: {_line(headline, name)}" if headline else phase


def _describe_training(trainer: Mapping[str, Any]) -> Iterator[str]:
    if (done := trainer.get("progressPercent")) is not None:
        yield f"{done} %"
    if (left := trainer.get("estimatedRemainingSeconds")) is not None:
        yield f"{format_age_seconds(left)} left"
    if (rate := trainer.get("samplesPerSecond")) is not None:
        yield f"{float(rate):,.0f} rows/s"
    if (busy := trainer.get("gpuUtilizationPercent")) is not None:
        yield f"GPUs busy {busy} %"
    if (waited := trainer.get("productionWaitPercent")) is not None:
        yield f"waiting for data {waited} %"


def _describe_output(output: Mapping[str, Any]) -> str:
    rows, files, size = (output.get(name, 0) for name in ("rows", "files", "bytes"))
    parts = [f"{rows:,} rows", f"{files:,} files", f"{size:,} bytes"]
    if "partitions" in output:
        done = output.get("completePartitions", 0)
        parts.append(f"{done:,} of {output['partitions']:,} partitions complete")
    if "snapshotId" in output:
        parts.append(f"snapshot {output['snapshotId']}")
    return ", ".join(parts)


def _describe_kept(kept: Mapping[str, Any]) -> str:
    done, needed = kept.get("completePartitions", 0), kept.get("partitions", 0)
    at = f" at snapshot {kept['snapshotId']}" if "snapshotId" in kept else ""
    state = str(kept.get("state", "")).lower()
    return f"{state}; {done:,} of {needed:,} partitions in {kept['catalog']}.{kept['table']}{at}"


def _describe_usage(usage: Mapping[str, Any]) -> Iterator[str]:
    """Yield the hours of the current run, and the idle share of the measured GPU time."""
    if gpu := usage.get("gpuSeconds"):
        measured = usage.get("gpuMeasuredSeconds")
        idle = f" ({usage.get('gpuIdleSeconds', 0) / measured:.0%} idle)" if measured else ""
        yield f"{gpu / _HOUR_SECONDS:,.1f} GPU hours{idle}"
    yield f"{usage.get('dataWorkerSeconds', 0) / _HOUR_SECONDS:,.1f} data worker hours"
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


def _age_of(condition: Mapping[str, Any]) -> str:
    return format_age(condition["lastTransitionTime"])


def _time_of(event: Document) -> str:
    return str(event.get("lastTimestamp") or event["metadata"]["creationTimestamp"])


def _place_of(event: Document) -> tuple[str, int]:
    # Times are whole seconds, so sort equal ones by version (comparable since Kubernetes 1.35).
    return _time_of(event), int(event["metadata"]["resourceVersion"])


def _line(of: Mapping[str, Any], name: str) -> str:
    """Return the message on one line, without the advice, which the line `Next` gives."""
    line = " ".join(str(of.get("message", "")).split())
    advice = advise_on_end(str(of.get("reason")), name)
    return line.replace(f"; {advice}", "", 1) if advice else line
