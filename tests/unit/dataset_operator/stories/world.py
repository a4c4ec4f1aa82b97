"""A world for plans: an experiment and its owned objects; decisions are carried out at once.

No I/O and no clock: time moves when a test says so. Pods are ready as soon as there is a cluster,
Ray answers as soon as the head is ready, and a job runs once it was submitted, unless a test says
otherwise.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from dataset_operator.api import DATA_WORKERS, FINALIZER, HEAD, INFERENCE
from dataset_operator.autoscaling.inference import InferenceMemory
from dataset_operator.autoscaling.intervals import Memory
from dataset_operator.builders.frozen import thaw
from dataset_operator.documents import format_time
from dataset_operator.kube.clusters import parse_cluster
from dataset_operator.kube.observe import drop_unsealed, find_accepted, find_broken_seals
from dataset_operator.names import Owner
from dataset_operator.observed import (
    Happened,
    HistoryPod,
    Job,
    Observed,
    Pod,
    Progress,
    Refusal,
    Scaling,
)
from dataset_operator.plan import decide
from dataset_operator.plan.outcome import Decision, Drain, KeepLog, Stop, Submit
from dataset_operator.plan.pod_rules import find_refusal
from dataset_operator.plan.scaling_log import find_log_job
from dataset_operator.readings import Readings
from dataset_operator.sealing import KEY_BYTES, Seal
from dataset_operator.settings import OperatorSettings, parse_settings
from dataset_operator.shapes import parse_status
from dataset_operator.status import find_condition
from pipeline_runtime.config import API_VERSION, KIND

SETTINGS = parse_settings({"runtimeImage": "runtime:1"})
SEAL = Seal(b"k" * KEY_BYTES)
GRACE_SECONDS = 30  # the grace period of a pod, which ends after half of it
UID = "0f3c6c1e-1111-2222-3333-444455556666"


def build_document(**spec: Any) -> dict[str, Any]:
    trainers = {} if "output" in spec else {"trainers": {"replicas": 1}}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "clicks", "namespace": "team", "uid": UID, "generation": 1},
        "spec": {"dataset": {"parquet": {"uri": "t/"}}, **trainers, **spec},
    }


def _most(group: dict[str, Any]) -> int:
    most: int = group.get("maxReplicas", group.get("replicas") or 0)
    return most


@dataclass(slots=True)
class World:
    document: dict[str, Any]
    settings: OperatorSettings = SETTINGS
    seal: Seal = SEAL
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    ray_cluster: dict[str, Any] | None = None
    has_token: bool = False
    children: dict[str, Any] = field(default_factory=dict)
    refused: Refusal | None = None  # result of a dry run of any cluster
    is_older: bool = False  # the operator does not have the rules for pods yet
    foreign: tuple[str, ...] = ()
    lingering: tuple[Pod, ...] = ()  # pods of a deleted cluster
    is_evicted: bool = False  # a queue took the cluster back, and its pods are gone
    head_uid: str = "head-1"
    unready: set[str] = field(default_factory=set)  # roles
    waiting: str = "no GPU is free"
    reachable: bool = True
    progress: Progress | None = None  # progress that a running driver reports
    unknown: str = ""  # message of a source about missing metrics
    memory: Memory | None = None  # memory of the autoscaling policy
    inference: dict[str, InferenceMemory] = field(default_factory=dict)  # and of groups of models
    readings: Readings | None = None  # kept across passes; None: each pass parses again
    drains: list[Drain] = field(default_factory=list)  # requests to Ray
    drained: set[str] = field(default_factory=set)  # addresses of drained workers
    logs: list[KeepLog] = field(default_factory=list)  # requests to Ray, each once
    log_ends: str = "SUCCEEDED"  # state of such a job; "": Ray cannot run it
    workers: dict[str, datetime] = field(default_factory=dict)  # data workers: time of creation
    models: dict[str, dict[str, datetime]] = field(default_factory=dict)  # the same by role
    taken: list[str] = field(default_factory=list)  # workers that KubeRay chose by itself
    ending: dict[str, datetime] = field(default_factory=dict)  # name → end of its grace period
    dead: set[str] = field(default_factory=set)  # workers on a lost node
    unwell: set[str] = field(default_factory=set)  # workers that are not ready
    awaited: set[str] = field(default_factory=set)  # workers that KubeRay deleted
    num_made: int = 0
    quota: int = 10**6  # bound of the workers of each group
    num_conflicts: int = 0  # number of following writes to the cluster that are refused
    jobs: dict[str, Job] = field(default_factory=dict)
    finalizer: bool = False
    gone: bool = False
    submitted: list[Submit] = field(default_factory=list)
    stopping: set[str] = field(default_factory=set)
    history_pods: list[dict[str, Any]] = field(default_factory=list)  # in order of creation
    history_ends: str = "Succeeded"  # phase of such a pod; "": it still runs
    num_clusters: int = 0
    events: list[str] = field(default_factory=list)

    def observe(self) -> Observed:
        submission = self.status.get("submission")
        ready = self.is_up
        job = self.jobs.get(submission["id"]) if submission and ready else None
        document = copy.deepcopy(self.document)
        if self.finalizer:
            document["metadata"]["finalizers"] = [FINALIZER]
        owner, cluster, children = self.owner, self.ray_cluster, copy.deepcopy(self.children)
        sealed = (cluster, children.get(owner.accepted))
        status = parse_status(self.status)
        accepted, is_sealed = find_accepted(owner, status, children, self.seal)
        return Observed(
            document=document,
            settings=self.settings,
            fresh_token="fresh-token",
            readings=self.readings or Readings(),
            accepted=accepted,
            is_accepted_sealed=is_sealed,
            rendered=thaw(cluster, owner.uid, self.seal) if cluster else None,
            broken_seals=find_broken_seals(owner, sealed, self.seal),
            children=drop_unsealed(owner, children, self.seal),
            foreign=self.foreign,
            cluster=parse_cluster(copy.deepcopy(cluster)) if cluster else None,
            has_token=self.has_token,
            pods=tuple(self._pods()),
            ray_reachable=ready,
            ray_failure="" if ready else "connection refused",
            job=job,
            progress=self.progress if job is not None and job.status == "RUNNING" else None,
            scaling=Scaling(
                memory=self.memory,
                inference=self.inference,
                drained=frozenset(self.drained),
                log_job=self.jobs.get(find_log_job(self.owner, status) or ""),
                unknown=self.unknown,
            ),
            history_pod=self._history_pod(),
            happened=Happened(events=({"reason": "Seen"},)),
        )

    def _history_pod(self) -> HistoryPod | None:
        name = self.status.get("history", {}).get("podName")
        pod = self.children.get(name)
        if pod is None:
            return None
        phase, why = self.history_ends or "Pending", "no keys" if self.history_ends else "no node"
        return HistoryPod(name=name, uid=name, phase=phase, message=why)

    def _pods(self) -> list[Pod]:
        if self.ray_cluster is None or self.is_evicted:
            return [*self.lingering]
        self._match_workers()
        groups = self.ray_cluster["spec"].get("workerGroupSpecs", ())
        drained = self._drained_groups
        numbers: dict[Any, int] = {
            group["groupName"]: group.get("replicas", 0)
            for group in groups
            if group["groupName"] not in drained
        }
        workers: list[Pod] = [
            Pod(
                name=name,
                uid=name,
                role=role,
                ready=not ({role} & self.unready or name in {*self.unwell, *self.ending}),
                waiting=self.waiting if role in self.unready else "",
                created=made,
                ends=self.ending.get(name),
                ip=f"ip-of-{name}",
            )
            for role, pods in drained.items()
            for name, made in pods.items()
        ]
        pods = [
            Pod(
                name=f"{role}-{index}",
                uid=self.head_uid if role == HEAD else f"{role}-{index}",
                role=role,
                ready=role not in self.unready,
                waiting=self.waiting if role in self.unready else "",
                ip=f"ip-of-{role}-{index}",
            )
            for role, number in ({HEAD: 1} | numbers).items()
            for index in range(number)
        ]
        return [*pods, *workers, *self.lingering]

    @property
    def _drained_groups(self) -> dict[str, dict[str, datetime]]:
        """Return the pods of each group that the operator drains, by the group's role."""
        return {DATA_WORKERS: self.workers, **self.models}

    def _match_workers(self) -> None:
        """Act like KubeRay 1.6: delete workers on the list, then surplus ones; create missing ones.

        It changes no group while a worker of it that it deleted is still there.
        """
        assert self.ray_cluster is not None
        for name, ends in list(self.ending.items()):
            if name not in self.dead and self.now >= ends - timedelta(seconds=GRACE_SECONDS / 2):
                self._forget_worker(name)
        groups = self.ray_cluster["spec"].get("workerGroupSpecs", ())
        for group in groups:
            if group["groupName"].startswith(f"{INFERENCE}-"):
                self.models.setdefault(group["groupName"], {})
        self.awaited &= {name for pods in self._drained_groups.values() for name in pods}
        for role, pods in self._drained_groups.items():
            if not self.awaited & set(pods):
                group = next((g for g in groups if g["groupName"] == role), {})
                self._match_group(role, pods, group)

    def _match_group(self, role: str, pods: dict[str, datetime], group: dict[str, Any]) -> None:
        listed = (group.get("scaleStrategy") or {}).get("workersToDelete") or ()
        counted = [name for name in pods if name not in listed]
        wanted = min(max(group.get("replicas") or 0, group.get("minReplicas", 0)), _most(group))
        taken = counted[: max(0, len(counted) - wanted)]
        self.taken += taken
        for name in (*listed, *taken):
            if name in pods:
                self.end_worker(name)
                self.awaited.add(name)
        for _ in range(min(wanted - len(counted), self.quota - len(pods))):
            pods[f"{role}-{self.num_made}"] = self.now
            self.num_made += 1

    def _forget_worker(self, name: str) -> None:
        for pods in self._drained_groups.values():
            pods.pop(name, None)
        self.ending.pop(name, None)
        self.dead.discard(name)
        self.unwell.discard(name)

    def end_worker(self, name: str) -> None:
        """Delete a worker, as anybody may."""
        self.ending.setdefault(name, self.now + timedelta(seconds=GRACE_SECONDS))

    @property
    def configs(self) -> dict[int, Any]:
        """Return the accepted experiment of each run."""
        stem = f"{self.owner.ray_cluster}-"
        return {
            int(name.removeprefix(stem).split("-")[0]): json.loads(child["data"]["experiment.json"])
            for name, child in self.children.items()
            if child["kind"] == "ConfigMap" and name != self.owner.accepted
        }

    @property
    def is_up(self) -> bool:
        """Return whether the head answers."""
        is_there = self.ray_cluster is not None and not self.is_evicted
        return is_there and HEAD not in self.unready and self.reachable

    @property
    def owner(self) -> Owner:
        return Owner.of(self.document)

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.document.get("status", {})
        return status

    def condition(self, kind: str) -> tuple[str, str] | None:
        found = find_condition(self.status, kind)
        return (found["status"], found["reason"]) if found else None

    def step(self, seconds: float = 0) -> Decision:
        """Run one pass and carry out its decision."""
        self.now += timedelta(seconds=seconds)
        decision = self.decide()
        for name in self.stopping:  # jobs that were asked to stop end before the next pass
            if name in self.jobs and self.jobs[name].is_active:
                self.end_job("STOPPED", name)
        self.stopping.clear()
        self._carry_out(decision)
        if self.ray_cluster is not None:
            self._match_workers()
        return decision

    def decide(self) -> Decision:
        """Plan like a pass does: again if a dry run refuses the new object."""
        observed = self.observe()
        decision = decide(observed, self.now)
        if decision.trial is not None:
            judged = not self.is_older
            refusal = find_refusal(self.owner, self.settings, decision.trial) if judged else None
            refusal = refusal or self.refused
            if refusal is not None:
                observed = replace(observed, refusal=refusal)
                decision = decide(observed, self.now)
        return decision.seal(self.seal)

    def crash(self, *, after_drain: bool = False, after_apply: bool = False) -> None:
        """Run a pass of an operator that is killed after the status, the drain or the applies."""
        decision = self.decide()
        self.document["status"] = decision.status.to_document()
        if after_drain:
            self.drains += decision.drains
        for child in decision.apply if after_apply else ():
            self._make(child)
        self.forget()

    def forget(self) -> None:
        """Begin with a new operator process."""
        self.memory, self.inference = None, {}

    def settle(self, passes: int = 12) -> None:
        """Run passes until one changes nothing."""
        for _ in range(passes):
            before = copy.deepcopy(self._everything)
            self.step()
            after = self._everything
            if before == after and not self.stopping:
                return
        raise AssertionError(f"it does not settle: {self.status}")

    @property
    def _everything(self) -> tuple[Any, ...]:
        return (self.document, self.ray_cluster, self.jobs, self.finalizer, self.children)

    def _carry_out(self, decision: Decision) -> None:
        self.document["status"] = decision.status.to_document()
        self.finalizer = decision.has_finalizer
        is_refused = bool(decision.patches) and self.num_conflicts > 0
        self.num_conflicts -= is_refused
        self.events += [
            f"{event.type} {event.reason}"
            for event in decision.events
            if not (event.is_outcome and is_refused)
        ]
        for child in (*decision.create, *decision.apply):
            self._make(child)
        for _, _, patch in () if is_refused else decision.patches:
            assert self.ray_cluster is not None
            self.ray_cluster = merge_json(self.ray_cluster, patch)
        self.memory = decision.memory or self.memory
        self.inference = {**self.inference, **decision.inference}
        self.drains += decision.drains
        if (
            decision.log is not None
            and self.log_ends
            and decision.log.submission_id not in self.jobs
        ):
            self.logs.append(decision.log)
            self.jobs[decision.log.submission_id] = Job(status=self.log_ends)  # type: ignore[arg-type]
        if isinstance(decision.job, Submit):
            self.submitted.append(decision.job)
            self.jobs.setdefault(decision.job.submission_id, Job(status="RUNNING"))
        elif isinstance(decision.job, Stop) and self.is_up:
            self.stopping.add(decision.job.submission_id)
        for kind, name in decision.delete:
            if kind == "Pod":
                del self.children[name]
            else:
                self.lose_cluster()
        self.gone = decision.delete_self
        if "deletionTimestamp" in self.document["metadata"]:
            self.gone = not self.finalizer

    def _make(self, child: dict[str, Any]) -> None:
        match child["kind"]:
            case "Secret":
                self.has_token = True
            case "RayCluster":
                self.ray_cluster = copy.deepcopy(child)
                self.num_clusters += 1
                self.ray_cluster["metadata"]["resourceVersion"] = "1"
                self.ray_cluster["metadata"]["uid"] = f"cluster-{self.num_clusters}"
            case "Pod":
                self.history_pods.append(child)
                self.children[child["metadata"]["name"]] = child
            case _:
                self.children[child["metadata"]["name"]] = child

    # --- possible events ------------------------------------------------------------------------

    def replace_cluster_as_older(self) -> None:
        """Replace the cluster by an operator without the rules for pods."""
        self.is_older = True
        self.lose_cluster()
        self.settle()
        self.step(seconds=20)
        self.settle()
        self.is_older = False

    def end_job(self, status: Any, submission_id: str = "", **more: Any) -> None:
        name = submission_id or self.status["submission"]["id"]
        if name in self.jobs:
            self.jobs[name] = replace(self.jobs[name], status=status, **more)

    def edit(self, **spec: Any) -> None:
        self.document["spec"] |= spec
        self.document["metadata"]["generation"] += 1

    def delete(self) -> None:
        self.document["metadata"]["deletionTimestamp"] = format_time(self.now)

    def lose_head(self) -> None:
        self.head_uid += "'"
        self.jobs = {}
        self.drained.clear()

    def lose_cluster(self) -> None:
        self.ray_cluster, self.jobs = None, {}
        for name in [name for pods in self._drained_groups.values() for name in pods]:
            self._forget_worker(name)
        self.head_uid += "+"


def running(settings: OperatorSettings = SETTINGS, **spec: Any) -> World:
    """Build a world whose first attempt trains."""
    world = World(build_document(**spec), settings=settings)
    world.settle()
    return world


def merge_json(document: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386) like the API server."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_json(merged.get(name), value)
    return merged
