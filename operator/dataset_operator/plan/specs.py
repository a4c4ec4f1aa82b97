"""The specs of a pass: as the user wants it now, and as the present run accepted it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dataset_operator.api import ACCEPTED
from dataset_operator.documents import Document
from dataset_operator.groups import HEAD_GROUP
from dataset_operator.observed import Observed
from dataset_operator.readings import Reading
from pipeline_runtime.config import ExperimentSpec, RuleSet, has_same_free_fields


@dataclass(frozen=True, kw_only=True)
class Specs:
    """The specs that one observation contains."""

    observed: Observed

    @cached_property
    def current(self) -> Reading:
        """The spec as it is wanted now; rules newer than its run apply from the next edit on."""
        reading = self.observed.readings.read_wanted(self.observed.document)
        spared = None if reading.experiment else self._spare(reading)
        return spared or reading

    @cached_property
    def accepted(self) -> Reading | None:
        """The spec that the present run accepted; None if it is unknown or cannot be trusted."""
        accepted, current = self.observed.accepted, self.current
        if accepted is None:
            return None
        is_same = current.experiment and accepted.get("spec") == current.spec_document
        return self._trust(current) if is_same else self._read_accepted()

    def read_again(self, spec: ExperimentSpec) -> Reading:
        """Return the reading that contains a spec of this pass."""
        readings = filter(None, (self.current, self.accepted))
        return next(r for r in readings if r.experiment and r.experiment.spec is spec)

    def build_manifest(self, spec: ExperimentSpec) -> Document:
        """Build the manifest of the experiment with a spec of this pass."""
        document = self.observed.document
        return {
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
            "metadata": {"name": self.observed.owner.name},
            "spec": self.read_again(spec).spec_document,
        }

    def find_spared_templates(self) -> frozenset[str]:
        """Return the fields of the spec whose template is not checked again.

        Such a template is still as it was accepted. A rule that is newer than the run, or an
        account that the settings no longer list, applies from the next edit of the template on.
        Only a ConfigMap with the operator's seal shows what was accepted.
        """
        if self._was_generation_accepted:
            return frozenset(kind.spec_field for kind in (HEAD_GROUP, *self.observed.groups))
        before = self._read_accepted() if self.observed.is_accepted_sealed else None
        return before.find_same_templates(self.observed.document) if before else frozenset()

    @property
    def _was_generation_accepted(self) -> bool:
        """Return whether an earlier pass, maybe of an older release, accepted this very spec."""
        condition = self.observed.status.find(ACCEPTED)
        if condition is None or condition.status != "True":
            return False
        return condition.observed_generation == self.observed.generation

    def _spare(self, refused: Reading) -> Reading | None:
        """Read a refused spec without the rules newer than its run; None if it breaks others.

        If this very generation was accepted, all rules are skipped. After an edit these are:
        - the rules for the templates that are still as they were accepted;
        - the rules about the place of a URI and about size, if the spec asks for the same run,
          and the free-form fields and the storage are unchanged.
        """
        read, document = self.observed.readings.read_wanted, self.observed.document
        if self._was_generation_accepted:
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

    def _read_accepted(self) -> Reading | None:
        """Read the ConfigMap of the accepted spec; one without a seal must obey the rules too."""
        accepted, is_sealed = self.observed.accepted, self.observed.is_accepted_sealed
        if accepted is None:
            return None
        rules = RuleSet.NONE if is_sealed else RuleSet.WITHOUT_NEWER
        owner = self.observed.owner
        return self._trust(self.observed.readings.read_accepted(accepted, owner, rules))

    def _trust(self, found: Reading) -> Reading | None:
        """Return a reading with an experiment that is sealed or has the status's run hash."""
        if found.experiment is None:
            return None
        is_sealed = self.observed.is_accepted_sealed
        return found if is_sealed or found.run_hash == self.observed.status.run_hash else None


def _has_same_stores(document: Mapping[str, Any], accepted: Mapping[str, Any]) -> bool:
    """Return whether the URIs that the run's hash leaves out are as they were accepted."""
    ours, theirs = document["spec"], accepted.get("spec") or {}
    return all(ours.get(name) == theirs.get(name) for name in ("artifacts", "storage"))
