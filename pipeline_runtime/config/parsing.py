"""A JSON document becomes a DatasetExperiment, or every rule that it breaks is found.

Runs after `documents` (YAML to JSON) and before `manifest` (which adds file, line and column).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue, ValidationError

from pipeline_runtime.config.base import SpecModel
from pipeline_runtime.config.documents import Path, format_path
from pipeline_runtime.config.experiment import DatasetExperiment
from pipeline_runtime.config.introspect import field_names, find_model
from pipeline_runtime.config.problems import (
    UNKNOWN,
    Found,
    explain_errors,
    resolve_path,
    show,
    value_at,
)
from pipeline_runtime.errors import ManifestError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The experiment, or what is wrong with the document: exactly one of the two."""

    experiment: DatasetExperiment | None
    found: Sequence[Found] = ()


def parse_experiment(document: JsonValue) -> DatasetExperiment:
    """The experiment that a JSON document (from YAML, or from the Kubernetes API) describes.

    Raises:
        ManifestError: with every broken rule, under its field's path.
    """
    verdict = judge(document)
    if verdict.experiment is None:
        raise ManifestError([Problem(path=format_path(p), message=m) for p, m in verdict.found])
    return verdict.experiment


def parse_stored(document: JsonValue) -> tuple[DatasetExperiment, list[str]]:
    """The experiment as the API server stores it, and the paths of fields that were not known.

    A newer release may have written fields that this one does not know; they are left out, so that
    a downgrade works.

    Raises:
        ManifestError: with every other broken rule.
    """
    unknown = [path for path, message in judge(document).found if message.startswith(UNKNOWN)]
    if not unknown:
        return parse_experiment(document), []
    known = copy.deepcopy(document)
    for path in unknown:
        above = value_at(known, path[:-1])
        if isinstance(above, dict):
            above.pop(str(path[-1]), None)
    return parse_experiment(known), [format_path(path) for path in unknown]


def judge(document: JsonValue) -> Verdict:
    """Validate a document; never raises for what is in it."""
    if not isinstance(document, dict):
        message = (
            f"must be a mapping with apiVersion, kind, metadata and spec, got {show(document)}"
        )
        return Verdict(experiment=None, found=[((), message)])
    try:
        # JSON mode, since strict models take a list for a tuple only there; by_name=False, since
        # the API server would not know snake_case either.
        text = json.dumps(document)
        experiment = DatasetExperiment.model_validate_json(text, by_alias=True, by_name=False)
        return Verdict(experiment=experiment)
    except ValidationError as error:
        found = explain_errors(error.errors(include_url=False), document)
    found += _find_hidden_rules(document, frozenset(path for path, _ in found))
    return Verdict(experiment=None, found=list(dict.fromkeys(found)))


def _find_hidden_rules(document: dict[str, JsonValue], wrong: frozenset[Path]) -> list[Found]:
    """Broken rules between fields that pydantic does not reach, as another field is wrong too."""
    search = _RuleSearch(document=document, wrong=wrong)
    search.build(DatasetExperiment, document, ())
    return search.found


@dataclass(slots=True, kw_only=True)
class _RuleSearch:
    """Builds the models without validation, from what is right, and asks each for its rules."""

    document: JsonValue
    wrong: frozenset[Path]
    found: list[Found] = field(default_factory=list)

    def build(self, model: type[SpecModel], value: JsonValue, path: Path) -> SpecModel | None:
        if not isinstance(value, dict):
            return None
        names = field_names(model)
        known = {names[alias]: item for alias, item in value.items() if alias in names}
        aliases = {name: alias for alias, name in names.items()}
        values = {n: self._field(model, n, v, (*path, aliases[n])) for n, v in known.items()}
        instance = model.model_construct(**values)
        self._ask(instance, value, path)
        return instance

    def _field(self, model: type[SpecModel], name: str, value: JsonValue, path: Path) -> Any:
        below = find_model(model.model_fields[name].annotation)
        if below is None:
            return _freeze(value)
        if isinstance(value, list):
            return tuple(self.build(below, item, (*path, i)) for i, item in enumerate(value))
        return self.build(below, value, path)

    def _ask(self, instance: SpecModel, value: dict[str, JsonValue], path: Path) -> None:
        sound = not any(wrong[:-1] == path for wrong in self.wrong)
        try:
            for name, message in instance.rules():
                broken = resolve_path(self.document, path, name)
                # A field that is misspelt or wrong is as good as absent to a rule. So beside one,
                # only what is said of fields that are there and right is worth saying.
                given = len(broken) > len(path) and broken[len(path)] in value
                if sound or (given and broken not in self.wrong):
                    self.found.append((broken, message))
        except (AttributeError, TypeError):
            return  # the rule needs a part that is itself wrong, and said so already


def _freeze(value: JsonValue) -> Any:
    return tuple(value) if isinstance(value, list) else value
