"""The input of a rule: the observation, the time, and the decisions of the rules before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import attrgetter

from dataset_operator.api import TRAINING, WRITING
from dataset_operator.autoscaling.inference import InferenceMemory
from dataset_operator.autoscaling.intervals import Memory
from dataset_operator.builders.frozen import thaw_trainers
from dataset_operator.documents import format_time, parse_time
from dataset_operator.names import Owner
from dataset_operator.observed import Observed
from dataset_operator.plan.outcome import Action, Event
from dataset_operator.plan.specs import Specs
from dataset_operator.plan.verdict import (
    NOT_JUDGED,
    NOTHING,
    Judged,
    NewCondition,
    Verdict,
    build_event,
)
from dataset_operator.settings import OperatorSettings
from dataset_operator.shapes import parse_status
from dataset_operator.status import forget_future, place_condition, set_condition
from pipeline_runtime.config import (
    Condition,
    DatasetExperiment,
    ExperimentSpec,
    ExperimentStatus,
    SubmissionStatus,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The state that one rule of a pass decides by.

    Attributes:
        now: the time in UTC, with its time zone set.
        status: the status as the rules before have decided it.
        has_finalizer: whether the experiment should have the finaliser.
        judged: the experiment that runs, and the wanted spec; `ending.refuse_invalid` sets it.
        actions: what the rules before want to be done.
        events: the events that they record.
        again_seconds: time until the next pass without an event; None: no such pass.
        memory: the new memory of the autoscaling policy; None: unchanged.
        inference: new memories of the policy of inference workers, by the name of their group.
        is_decided: whether a rule ended the pass.
    """

    observed: Observed
    now: datetime
    specs: Specs
    status: ExperimentStatus
    has_finalizer: bool
    judged: Judged = NOT_JUDGED
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    again_seconds: float | None = None
    memory: Memory | None = None
    inference: Mapping[str, InferenceMemory] = field(default_factory=dict)
    is_decided: bool = False

    @classmethod
    def begin(cls, observed: Observed, now: datetime) -> Situation:
        """Return the situation before the first rule."""
        written = observed.document.get("status")
        kept = forget_future(written, now) if isinstance(written, Mapping) else written
        status = observed.status if kept == written else parse_status(kept)
        return cls(
            observed=observed,
            now=now,
            specs=Specs(observed=observed),
            status=status,
            has_finalizer=status.submission is not None,
        )

    def after(self, verdict: Verdict) -> Situation:
        """Return the situation that the next rule sees.

        Events get a fixed order, since the rules of one stage have none.
        """
        fields, conditions = dict(verdict.fields), self.status.conditions
        if verdict.clears:
            fields["conditions"] = tuple(c for c in conditions if c.type not in verdict.clears)
        status = self.status.change(**fields) if fields else self.status
        events, generation = list(self.events), self.observed.generation
        for new in sorted(verdict.conditions, key=lambda new: place_condition(new.type)):
            before = status.find(new.type)
            if before is None or (before.status, before.reason) != (new.status, new.reason):
                if new.is_recorded:
                    events.append(build_event(new.reason, new.message, warns=new.warns))
            elif (before.message, before.observed_generation) == (new.message, generation):
                continue
            status = set_condition(status, _build(new), generation=generation, now=self.now)
        soon = [s for s in (self.again_seconds, verdict.again_seconds) if s is not None]
        holds = verdict.has_finalizer
        return replace(
            self,
            status=status,
            has_finalizer=self.has_finalizer if holds is None else holds,
            judged=verdict.judged or self.judged,
            actions=self.actions + verdict.actions,
            events=(*events, *sorted(verdict.events, key=attrgetter("reason", "message"))),
            again_seconds=min(soon, default=None),
            memory=verdict.memory or self.memory,
            inference={**self.inference, **verdict.inference},
            is_decided=self.is_decided or verdict.ends,
        )

    # --- the observation ------------------------------------------------------------------------

    @property
    def owner(self) -> Owner:
        """The experiment as the owner of its objects."""
        return self.observed.owner

    @property
    def settings(self) -> OperatorSettings:
        """The operator's settings."""
        return self.observed.settings

    def until(self, start: datetime | str, seconds: float) -> float:
        """Return the seconds until a moment after `start`; negative once it has passed."""
        begun = parse_time(start) if isinstance(start, str) else start
        return (begun + timedelta(seconds=seconds) - self.now).total_seconds()

    @property
    def stamp(self) -> str:
        """The present time as Kubernetes writes it."""
        return format_time(self.now)

    # --- the experiment -------------------------------------------------------------------------

    @property
    def spec(self) -> ExperimentSpec | None:
        """The spec as it is wanted now; None if it is invalid."""
        return self.judged.spec

    @property
    def running(self) -> DatasetExperiment:
        """The experiment that runs; every rule after `refuse_invalid` has one."""
        assert self.judged.experiment is not None
        return self.judged.experiment

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
        wanted, accepted = self.specs.current, self.specs.accepted
        if accepted is None:
            return wanted.run_hash != self.status.run_hash
        # Both are hashed by this version: another one may hash the same run differently.
        if wanted.run_hash != accepted.run_hash:
            return True
        in_order = self.spec.pipeline_options.preserve_order is True
        size = self.spec.trainers.world_size
        return in_order and accepted.valid.spec.trainers.world_size != size

    # --- the cluster ----------------------------------------------------------------------------

    @property
    def on_cluster(self) -> DatasetExperiment:
        """The experiment that runs, with the trainers of the present cluster.

        An edit of the number of trainers takes effect with the next cluster.
        """
        cluster, spec = self.observed.cluster, self.running.spec
        if cluster is None or not spec.num_trainers:
            return self.running
        trainers = thaw_trainers(cluster.trainers, spec.trainers)
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
        cluster = self.observed.cluster
        if cluster is None or cluster.made_from is None:
            return False
        return cluster.made_from != self.specs.read_again(self.cluster_spec).cluster_hash

    # --- what was decided -----------------------------------------------------------------------

    @property
    def run(self) -> int:
        """Number of the run; every rule after `start_changed_run` has one."""
        assert self.status.run is not None
        return self.status.run

    @property
    def start_time(self) -> str:
        """The time when the run began or was last resumed; every run has it."""
        assert self.status.start_time is not None
        return self.status.start_time

    @property
    def submission(self) -> SubmissionStatus | None:
        """The submitted attempt whose result is not known yet."""
        return self.status.submission

    @property
    def attempt(self) -> int:
        """The number of attempts so far."""
        return self.status.attempt or 0

    @property
    def failures(self) -> int:
        """The number of failures of this run so far."""
        return self.status.failures or 0

    def reason(self, kind: str) -> str | None:
        """Return the reason of a condition."""
        condition = self.status.find(kind)
        return condition.reason if condition else None

    def will(self, *kinds: type[Action]) -> bool:
        """Return whether the rules before want an action of one of these kinds."""
        return any(isinstance(action, kinds) for action in self.actions)


Rule = Callable[[Situation], Verdict | None]


def follow(situation: Situation, *rules: Rule) -> Verdict:
    """Return what rules decide one after another, until one ends the pass.

    Each rule sees what the rules before it have decided.
    """
    whole = NOTHING
    for rule in rules:
        verdict = rule(situation)
        if verdict is not None:
            whole, situation = whole + verdict, situation.after(verdict)
        if whole.ends:
            break
    return whole


def _build(new: NewCondition) -> Condition:
    return Condition(
        type=new.type,
        status=new.status,
        reason=new.reason,
        message=new.message,
        last_transition_time="",
    )
