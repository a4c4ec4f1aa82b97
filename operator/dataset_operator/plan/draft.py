"""The draft of one reconcile pass: the observation, and what the rules have decided so far.

It is the only mutable object of planning, and lives for one call of `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from dataset_operator.api import (
    ACCEPTED,
    CLUSTER_HASH_ANNOTATION,
    SCALING_ACTIVE,
    SCALING_LIMITED,
    TRAINING,
    WRITING,
)
from dataset_operator.autoscaling.intervals import Memory
from dataset_operator.builders.children import build_service_account
from dataset_operator.builders.frozen import thaw_trainers
from dataset_operator.builders.pod_templates import SPEC_FIELDS
from dataset_operator.names import Owner
from dataset_operator.observed import Document, Observed, format_time, parse_time
from dataset_operator.plan.outcome import Decision, Drain, Event, KeepLog, Stop, Submit
from dataset_operator.plan.readings import Reading, Readings
from dataset_operator.settings import OperatorSettings
from dataset_operator.status import (
    ConditionStatus,
    derive_phase,
    find_condition,
    fit_message,
    fit_status,
    forget_future,
    is_true,
    set_condition,
)
from pipeline_runtime.config import DatasetExperiment, ExperimentSpec, RuleSet, has_same_free_fields


@dataclass(slots=True, kw_only=True)
class Draft:
    """The observed and the wanted state of one pass.

    Attributes:
        token: a fresh random token, used only if the experiment has none yet.
        experiment: the experiment that runs; `ending.refuse_invalid` sets it.
        spec: the spec as it is wanted now; None if it is invalid.
        ignored: paths of the spec that this version does not know.
        trial: a RayCluster for a dry run.
        again: seconds after which other passes are due.
        not_corrected: why an edit of the cluster by hand stays; "" if none does.
        is_scaling_requested: whether a user's request for a number of workers is in progress.
    """

    observed: Observed
    settings: OperatorSettings
    now: datetime
    token: str
    status: Document = field(init=False)
    has_finalizer: bool = field(init=False)
    experiment: DatasetExperiment | None = None
    spec: ExperimentSpec | None = None
    ignored: Sequence[str] = ()
    create: list[Document] = field(default_factory=list)
    apply: list[Document] = field(default_factory=list)
    patches: list[tuple[str, str, Document]] = field(default_factory=list)
    trial: Document | None = None
    delete: list[tuple[str, str]] = field(default_factory=list)
    delete_self: bool = False
    job: Submit | Stop | None = None
    drain: Drain | None = None
    log: KeepLog | None = None
    memory: Memory | None = None
    events: list[Event] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    not_corrected: str = ""
    is_scaling_requested: bool = False
    readings: Readings = field(default_factory=Readings)
    _current: Reading | None = None
    _accepted: Reading | None = None

    def __post_init__(self) -> None:
        self.status = forget_future(self.observed.status, self.now)
        self.has_finalizer = self.submission is not None

    # --- the observed state ---------------------------------------------------------------------

    @property
    def owner(self) -> Owner:
        """The experiment as the owner of its objects."""
        return self.observed.owner

    @property
    def running(self) -> DatasetExperiment:
        """The experiment that runs; every rule after `refuse_invalid` has one."""
        assert self.experiment is not None
        return self.experiment

    @property
    def is_writing(self) -> bool:
        """Return whether the run writes a table, instead of training a model."""
        return self.running.spec.output is not None

    @property
    def work(self) -> str:
        """Type of the condition about the driver."""
        return WRITING if self.is_writing else TRAINING

    @property
    def wanted(self) -> ExperimentSpec:
        """The source of fields that may change during a run, such as deadlines and limits."""
        return self.spec or self.running.spec

    @property
    def is_run_changed(self) -> bool:
        """Return whether the spec asks for another run: other data, code or training.

        With `preserveOrder` a checkpoint resumes only on as many ranks as wrote it, so another
        number of ranks is another run too.
        """
        if self.spec is None:
            return False
        wanted, accepted = self.current, self.accepted
        if accepted is None:
            return wanted.run_hash != self.status.get("runHash")
        # Both are hashed by this version: another one may hash the same run differently.
        if wanted.run_hash != accepted.run_hash:
            return True
        in_order = self.spec.pipeline_options.preserve_order is True
        size = self.spec.trainers.world_size
        return in_order and accepted.valid.spec.trainers.world_size != size

    @property
    def on_cluster(self) -> DatasetExperiment:
        """The experiment that runs, with the trainers of the present cluster.

        An edit of the number of trainers takes effect with the next cluster.
        """
        cluster, spec = self.observed.ray_cluster, self.running.spec
        if cluster is None or spec.output:
            return self.running
        trainers = thaw_trainers(cluster, spec.trainers)
        if trainers == spec.trainers:
            return self.running
        spec = spec.model_copy(update={"trainers": trainers})
        return self.running.model_copy(update={"spec": spec})

    @property
    def is_rank_count_wrong(self) -> bool:
        """Return whether a run in order needs another number of ranks than the cluster has."""
        spec, there = self.running.spec, self.on_cluster.spec
        in_order = spec.pipeline_options.preserve_order is True  # off on a cluster if absent
        return in_order and there.trainers.world_size != spec.trainers.world_size

    @property
    def cluster_spec(self) -> ExperimentSpec:
        """The spec for the run's cluster; it includes edits, except those for the next run."""
        return self.running.spec if self.is_run_changed else self.wanted

    @property
    def is_cluster_changed(self) -> bool:
        """Return whether the present cluster was made from another spec."""
        cluster = self.observed.ray_cluster
        if cluster is None:
            return False
        made_from = (cluster["metadata"].get("annotations") or {}).get(CLUSTER_HASH_ANNOTATION)
        if made_from is None:
            return False
        return bool(made_from != self.read_again(self.cluster_spec).cluster_hash)

    @property
    def submission(self) -> Document | None:
        """The submitted attempt whose result is not known yet: {id, headPodUid, time}."""
        submission: Document | None = self.status.get("submission")
        return submission

    @property
    def attempt(self) -> int:
        """The number of attempts so far."""
        return int(self.status.get("attempt", 0))

    @property
    def failures(self) -> int:
        """The number of failures of this run so far."""
        return int(self.status.get("failures", 0))

    def is_true(self, kind: str) -> bool:
        """Return whether a condition is true."""
        return is_true(self.status, kind)

    def since(self, kind: str) -> datetime | None:
        """Return the time of the last transition of a condition."""
        condition = find_condition(self.status, kind)
        return parse_time(condition["lastTransitionTime"]) if condition else None

    def reason(self, kind: str) -> str | None:
        """Return the reason of a condition."""
        condition = find_condition(self.status, kind)
        return condition["reason"] if condition else None

    @property
    def current(self) -> Reading:
        """The spec as it is wanted now; rules newer than its run apply from the next edit on."""
        if self._current is None:
            reading = self.readings.read_wanted(self.observed.document)
            spared = None if reading.experiment else self._spare(reading)
            self._current = spared or reading
        return self._current

    @property
    def was_generation_accepted(self) -> bool:
        """Return whether an earlier pass, maybe of an older release, accepted this very spec."""
        condition = find_condition(self.observed.status, ACCEPTED)
        if condition is None or condition["status"] != "True":
            return False
        return bool(condition.get("observedGeneration") == self.observed.generation)

    def find_spared_templates(self) -> frozenset[str]:
        """Return the fields of the spec whose template is not checked again.

        Such a template is still as it was accepted. A rule that is newer than the run, or an
        account that the settings no longer list, applies from the next edit of the template on.
        Only a ConfigMap with the operator's seal shows what was accepted.
        """
        if self.was_generation_accepted:
            return frozenset(SPEC_FIELDS.values())
        before = self._read_accepted() if self.observed.is_accepted_sealed else None
        return before.find_same_templates(self.observed.document) if before else frozenset()

    def _spare(self, refused: Reading) -> Reading | None:
        """Read a refused spec without the rules newer than its run; None if it breaks others.

        If this very generation was accepted, all rules are skipped. After an edit these are:
        - the rules for the templates that are still as they were accepted;
        - the rules about the place of a URI and about size, if the spec asks for the same run,
          and the free-form fields and the storage are unchanged.
        """
        read, document = self.readings.read_wanted, self.observed.document
        if self.was_generation_accepted:
            return read(document, RuleSet.NONE)
        before, accepted = self._read_accepted(), self.observed.accepted
        if before is None or accepted is None:
            return None
        without = self.find_spared_templates()
        rest = read(document, without=without)
        is_same = not refused.is_too_large or has_same_free_fields(dict(document), dict(accepted))
        if rest.experiment is None and is_same:
            rest = read(document, RuleSet.WITHOUT_NEWER, without=without)
            is_same_run = rest.experiment is not None and before.run_hash == rest.run_hash
            is_same = is_same_run and _has_same_stores(document, accepted)
        if rest.experiment is None or not is_same:
            return None
        return read(document, RuleSet.NONE)

    @property
    def accepted(self) -> Reading | None:
        """The spec that the present run accepted; None if it is unknown or cannot be trusted."""
        accepted, current = self.observed.accepted, self.current
        if accepted is None:
            return None
        if self._accepted is None:
            is_same = current.experiment and accepted.get("spec") == current.spec_document
            self._accepted = self._trust(current) if is_same else self._read_accepted()
        return self._accepted

    def _read_accepted(self) -> Reading | None:
        """Read the ConfigMap of the accepted spec; one without a seal must obey the rules too."""
        accepted, is_sealed = self.observed.accepted, self.observed.is_accepted_sealed
        if accepted is None:
            return None
        rules = RuleSet.NONE if is_sealed else RuleSet.WITHOUT_NEWER
        return self._trust(self.readings.read_accepted(accepted, self.owner, rules))

    def _trust(self, found: Reading) -> Reading | None:
        """Return a reading with an experiment that is sealed or has the status's run hash."""
        if found.experiment is None:
            return None
        is_sealed = self.observed.is_accepted_sealed
        return found if is_sealed or found.run_hash == self.status.get("runHash") else None

    def read_again(self, spec: ExperimentSpec) -> Reading:
        """Return the reading that contains a spec of this pass."""
        readings = filter(None, (self.current, self.accepted))
        return next(r for r in readings if r.experiment and r.experiment.spec is spec)

    # --- the wanted state -----------------------------------------------------------------------

    def build_config(self) -> Document:
        """Build the manifest of the experiment that runs."""
        document = self.observed.document
        return {
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
            "metadata": {"name": self.owner.name},
            "spec": self.read_again(self.running.spec).spec_document,
        }

    def condition(
        self,
        kind: str,
        status: bool | None,
        reason: str,
        message: str,
        *,
        warns: bool = False,
        tells: bool = True,
    ) -> None:
        """Set a condition.

        Args:
            status: None for `Unknown`.
            message: its end is cut off if it is too long.
            warns: whether a user has to act, or something was lost.
            tells: whether a transition or a new reason is recorded as an event too.
        """
        before, message = find_condition(self.status, kind), fit_message(message, kind)
        words: ConditionStatus = "Unknown" if status is None else "True" if status else "False"
        self.status = set_condition(
            self.status,
            {"type": kind, "status": words, "reason": reason, "message": message},
            generation=self.observed.generation,
            now=self.now,
        )
        is_new = before is None or (before["status"], before["reason"]) != (words, reason)
        if is_new and tells:
            self.tell(reason, message, warns=warns)

    def tell(
        self,
        reason: str,
        message: str,
        *,
        warns: bool = False,
        logs: bool = False,
        is_outcome: bool = False,
    ) -> None:
        """Record an event that does not follow from a condition."""
        kind: Literal["Normal", "Warning"] = "Warning" if warns else "Normal"
        event = Event(
            type=kind, reason=reason, message=message, is_logged=logs, is_outcome=is_outcome
        )
        self.events.append(event)

    def clear(self, *kinds: str) -> None:
        """Remove conditions."""
        kept = [c for c in self.status.get("conditions", ()) if c["type"] not in kinds]
        self.status["conditions"] = kept

    def forget(self, *fields: str) -> None:
        """Remove fields of the status."""
        for name in fields:
            self.status.pop(name, None)

    def find_missing_account(self) -> list[Document]:
        """Build the pods' service account if the settings name none and it does not exist yet."""
        is_named = self.settings.service_account is not None
        if is_named or self.owner.service_account in self.observed.children:
            return []
        return [build_service_account(self.owner)]

    def look_again(self, seconds: float) -> None:
        """Request another pass after this many seconds, even without an event."""
        self.again.append(max(0.0, seconds))

    def until(self, start: datetime, seconds: float) -> float:
        """Return the seconds until a moment after `start`; negative once it has passed."""
        return (start + timedelta(seconds=seconds) - self.now).total_seconds()

    def stamp(self) -> str:
        """Return the present time as Kubernetes writes it."""
        return format_time(self.now)

    def release_cluster(self, *, deletes: bool = True) -> None:
        """Delete the RayCluster with its pods, and clear its status; keep it without `deletes`."""
        if deletes and self.observed.ray_cluster is not None:
            self.delete.append(("RayCluster", self.owner.ray_cluster))
        self.forget("rayClusterName", "gpus", "unreachableTime")
        self.clear(SCALING_ACTIVE, SCALING_LIMITED)
        self.forget_drain()
        if workers := self.status.get("dataWorkers"):
            self.status["dataWorkers"] = {**workers, "currentReplicas": 0, "readyReplicas": 0}

    def forget_drain(self) -> None:
        """Forget the draining workers; the wanted number is the number that was to stay."""
        workers = dict(self.status.get("dataWorkers") or {})
        if workers.pop("draining", None) is None:
            return
        staying = workers.pop("drainingTo", None)
        known = {} if staying is None else {"desiredReplicas": staying}
        self.status["dataWorkers"] = {**workers, **known}

    @property
    def is_status_new(self) -> bool:
        """Return whether the status, as decided so far, differs from the observed one."""
        return self._complete_status() != dict(self.observed.status)

    def _complete_status(self) -> Document:
        about = {"observedGeneration": self.observed.generation}
        return fit_status({**self.status, **about, "phase": derive_phase(self.status)})

    def decide(self) -> Decision:
        """Return the decision of the pass."""
        return Decision(
            status=self._complete_status(),
            has_finalizer=self.has_finalizer,
            create=tuple(self.create),
            apply=tuple(self.apply),
            patches=tuple(self.patches),
            trial=self.trial,
            job=self.job,
            drain=self.drain,
            log=self.log,
            memory=self.memory,
            delete=tuple(self.delete),
            delete_self=self.delete_self,
            events=tuple(self.events),
            again_seconds=min(self.again, default=None),
        )


def _has_same_stores(document: Mapping[str, Any], accepted: Mapping[str, Any]) -> bool:
    """Return whether the URIs that the run's hash leaves out are as they were accepted."""
    ours, theirs = document["spec"], accepted.get("spec") or {}
    return all(ours.get(name) == theirs.get(name) for name in ("artifacts", "storage"))
