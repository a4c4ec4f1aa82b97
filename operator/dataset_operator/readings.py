"""A cache of parsed, hashed and checked specs.

A spec does not change within a generation, but every pass needs it many times, and a large one is
expensive to parse and to hash. A reconciler keeps one `Readings` for all of its passes.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dataset_operator.builders.frozen import hash_cluster_side
from dataset_operator.documents import Document
from dataset_operator.groups import GROUPS, Group, Groups, resolve_roles
from dataset_operator.names import Owner
from dataset_operator.sealing import compute_digest
from pipeline_runtime.config import (
    DatasetExperiment,
    ManifestError,
    Problem,
    RuleSet,
    is_template,
    is_too_large,
    parse_stored,
    run_hash,
)
from pipeline_runtime.grammar import check_grammar

MAX_KEPT_BYTES = 64 << 20
# Characters of all expressions of a spec that the operator parses; the driver parses the others.
# 16 KiB of them take 3 ms, at worst 250 ms.
MAX_EXPRESSION_CHARS = 128 << 10
# Memory of a parsed spec, measured with tracemalloc on specs of 1 to 200 KiB: the models with their
# defaults, a model or dict for each mapping, an object for each value, and the strings.
_BYTES_OF_A_READING = 12 << 10
_BYTES_OF_A_MAPPING = 600
_BYTES_OF_A_VALUE = 80


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A parsed spec, or its broken rules. Hashes are computed on first use, and kept.

    Attributes:
        experiment: the experiment; None if the spec breaks a rule.
        problems: the broken rules, including those of expressions.
        unknown: paths of fields that this version does not know.
        is_too_large: whether it was refused for the size of its free-form fields.
        num_bytes: an estimate of its memory.
        groups: the table of worker groups.
    """

    experiment: DatasetExperiment | None = None
    problems: Sequence[Problem] = ()
    unknown: Sequence[str] = ()
    is_too_large: bool = False
    num_bytes: int = _BYTES_OF_A_READING
    groups: Groups = GROUPS

    @property
    def valid(self) -> DatasetExperiment:
        """The experiment of a reading that has one."""
        assert self.experiment is not None
        return self.experiment

    @cached_property
    def run_hash(self) -> str:
        """The hash that identifies the run."""
        return run_hash(self.valid)

    @cached_property
    def cluster_hash(self) -> str:
        """The hash of the fields that a cluster is made from."""
        return hash_cluster_side(self.valid.spec, self.groups)

    @cached_property
    def spec_document(self) -> Document:
        """The spec in the form of a manifest."""
        return self.valid.spec.to_document()

    def find_same_templates(self, document: Mapping[str, Any]) -> frozenset[str]:
        """Return the fields of the spec that have the same template here and in a document.

        Args:
            document: an experiment; its spec may have any shape.
        """
        spec = document.get("spec")
        theirs = spec if isinstance(spec, Mapping) else {}

        def is_same(group: Group) -> bool:
            ours, other = group.pods.section.template, theirs.get(group.kind.spec_field)
            template = other.get("template") if isinstance(other, Mapping) else None
            return bool(ours) and ours == template

        found = resolve_roles(self.valid.spec, self.groups)
        return frozenset(group.kind.spec_field for group in found if is_same(group))


@dataclass(slots=True, kw_only=True)
class Readings:
    """The latest readings, within a bound on their memory; safe to use from any thread.

    Attributes:
        max_bytes: the bound; the last reading is kept even if it takes more.
        groups: the table of worker groups.
        num_bytes: an estimate of the memory of all readings.
    """

    max_bytes: int = MAX_KEPT_BYTES
    groups: Groups = GROUPS
    _kept: OrderedDict[tuple[object, ...], Reading] = field(default_factory=OrderedDict)
    num_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read_wanted(
        self,
        document: Mapping[str, Any],
        rules: RuleSet = RuleSet.ALL,
        *,
        without: frozenset[str] = frozenset(),
    ) -> Reading:
        """Read the spec of an experiment as the API server has it.

        Args:
            without: fields of the spec whose template is left out.
        """
        metadata = document["metadata"]
        key = (metadata["uid"], metadata.get("generation"), rules, without)
        return self._read(key, _leave_out_templates(document, without), rules)

    def read_accepted(self, document: Mapping[str, Any], owner: Owner, rules: RuleSet) -> Reading:
        """Read the accepted spec of a run from its ConfigMap; the digest of it is the key."""
        digest = compute_digest(document)
        if not digest:
            return _read(document, rules, self.groups)
        return self._read((owner.uid, digest, rules), document, rules)

    def _read(
        self, key: tuple[object, ...], document: Mapping[str, Any], rules: RuleSet
    ) -> Reading:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        # Without the lock, so that a large spec does not delay other experiments.
        reading = _read(document, rules, self.groups)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = reading
                self.num_bytes += reading.num_bytes
            while self.num_bytes > self.max_bytes and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self.num_bytes -= oldest.num_bytes
            return self._kept[key]


def _leave_out_templates(document: Mapping[str, Any], fields: frozenset[str]) -> Mapping[str, Any]:
    spec = document.get("spec")
    if not fields or not isinstance(spec, Mapping):
        return document
    left = {
        name: {k: v for k, v in group.items() if k != "template"} if name in fields else group
        for name, group in spec.items()
    }
    return {**document, "spec": left}


def _read(document: Mapping[str, Any], rules: RuleSet, groups: Groups) -> Reading:
    """Read the spec and the name; the API server may change all else within a generation."""
    part = _pick(document, "apiVersion", "kind", "spec")
    metadata = document.get("metadata")  # in a ConfigMap it may have any type
    part["metadata"] = _pick(metadata if isinstance(metadata, Mapping) else {}, "name", "namespace")
    try:
        experiment, unknown = parse_stored(part, rules)
    except ManifestError as error:
        too_large = rules is RuleSet.ALL and is_too_large(part)
        return Reading(problems=tuple(error.problems), is_too_large=too_large)
    # Without rules, a template in a ConfigMap may have any shape.
    found = resolve_roles(experiment.spec, groups)
    if not all(is_template(group.pods.section.template) for group in found):
        return Reading()
    problems: Sequence[Problem] = ()
    if rules is not RuleSet.NONE:
        problems = tuple(check_grammar(experiment.spec, max_chars=MAX_EXPRESSION_CHARS))
    return Reading(
        experiment=experiment,
        problems=problems,
        unknown=unknown,
        num_bytes=_estimate_bytes(part, unknown),
        groups=groups,
    )


def _pick(document: Mapping[str, Any], *names: str) -> Document:
    return {name: document[name] for name in names if name in document}


def _estimate_bytes(document: Mapping[str, Any], unknown: Sequence[str]) -> int:
    text = json.dumps(document)
    num_values = text.count(",") + text.count("[") + len(unknown)
    num_chars = 2 * len(text) + sum(map(len, unknown))  # strings are kept twice
    values = _BYTES_OF_A_MAPPING * text.count("{") + _BYTES_OF_A_VALUE * num_values
    return _BYTES_OF_A_READING + values + num_chars
