"""Parses a JSON document into a DatasetExperiment, or finds every rule that it breaks.

It runs after `yaml_documents` (YAML to JSON), and before `manifest` adds file, line and column.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pydantic import JsonValue, ValidationError

from pipeline_runtime.config.base import MAX_LIST_ITEMS, RULE_SET, RuleSet, SpecModel
from pipeline_runtime.config.experiment import DatasetExperiment
from pipeline_runtime.config.introspect import field_names, find_model
from pipeline_runtime.config.reading.free_fields import check_size, find_free_fields
from pipeline_runtime.config.reading.wording import (
    MAX_PROBLEMS,
    UNKNOWN_TYPE,
    Found,
    explain_errors,
    locate_error,
    resolve_path,
    show,
    value_at,
)
from pipeline_runtime.config.texts.yaml_documents import (
    MAX_DEPTH,
    SHOWN_DEPTH,
    TOO_DEEP,
    Path,
    format_path,
)
from pipeline_runtime.errors import ManifestError, Problem

# The operator sets it to 1 in the environment of a driver, since it has accepted the experiment.
ACCEPTED_VARIABLE = "LASTMILE_ACCEPTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The experiment of a document, or its broken rules: exactly one of the two.

    Attributes:
        is_too_large: whether the document was refused only for its size.
    """

    experiment: DatasetExperiment | None
    found: Sequence[Found] = ()
    is_too_large: bool = False


def parse_experiment(document: JsonValue) -> DatasetExperiment:
    """Parse the experiment in a JSON document, which comes from YAML or the Kubernetes API.

    Raises:
        ManifestError: with every broken rule, at the path of its field.
    """
    return _accept(judge(document))


def _accept(verdict: Verdict) -> DatasetExperiment:
    if verdict.experiment is None:
        raise ManifestError([Problem(path=format_path(p), message=m) for p, m in verdict.found])
    return verdict.experiment


def parse_stored(
    document: JsonValue, rules: RuleSet = RuleSet.ALL
) -> tuple[DatasetExperiment, list[str]]:
    """Parse an experiment as the API server stores it; return it and the paths of unknown fields.

    A newer release may have written the unknown fields. They are ignored, so that a downgrade
    works.

    Raises:
        ManifestError: with every broken rule of the set.
    """
    verdict = judge(document, rules)
    unknown = [] if verdict.experiment or verdict.is_too_large else _find_unknown(document)
    if not unknown:
        return _accept(verdict), []
    known = copy.deepcopy(document)
    for path in unknown:
        above = value_at(known, path[:-1])
        if isinstance(above, dict):
            above.pop(str(path[-1]), None)
    accepted = _accept(judge(known, rules))
    return accepted, [format_path(path) for path in unknown]


def _find_unknown(document: JsonValue) -> list[Path]:
    try:
        _validate(document)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        return [locate_error(found)[0] for found in errors if found["type"] == UNKNOWN_TYPE]
    except RecursionError:  # `judge` reports it
        return []
    return []


def judge(document: JsonValue, rules: RuleSet = RuleSet.ALL) -> Verdict:
    """Validate a document; no content of it raises an error."""
    if not isinstance(document, dict):
        message = (
            f"must be a mapping with apiVersion, kind, metadata and spec, got {show(document)}"
        )
        return Verdict(experiment=None, found=[((), message)])
    try:
        # The size comes first: validating a document that is too large would be expensive.
        if rules is RuleSet.ALL and (broken := check_size(document)):
            return Verdict(experiment=None, found=[broken], is_too_large=True)
        experiment = _validate(document, rules)
    except RecursionError:
        return Verdict(experiment=None, found=[(_find_too_deep(document), TOO_DEEP)])
    except ValidationError as error:
        errors = error.errors(include_url=False)
    else:
        # Only fields without a schema can be valid and nested too deep.
        deep = [
            (path, TOO_DEEP) for path, value in find_free_fields(document) if _is_deep(path, value)
        ]
        return Verdict(experiment=None if deep else experiment, found=deep)
    if any(error["type"] == "json_invalid" for error in errors):  # pydantic's own bound on depth
        return Verdict(experiment=None, found=[(_find_too_deep(document), TOO_DEEP)])
    found = explain_errors(errors[:MAX_PROBLEMS], document)
    if len(errors) <= MAX_PROBLEMS and rules is not RuleSet.NONE:
        found += _find_hidden_rules(document, frozenset(path for path, _ in found))
    return Verdict(experiment=None, found=_bound(list(dict.fromkeys(found)), len(errors)))


def _validate(document: JsonValue, rules: RuleSet = RuleSet.ALL) -> DatasetExperiment:
    # JSON mode, since only there strict models accept a list for a tuple. by_name=False, since the
    # API server does not know snake_case names either.
    text = json.dumps(document)
    return DatasetExperiment.model_validate_json(
        text, by_alias=True, by_name=False, context={RULE_SET: rules}
    )


def _bound(found: list[Found], num_errors: int) -> list[Found]:
    """Return the first MAX_PROBLEMS of the broken rules, and the number of the others."""
    if (more := max(len(found), num_errors) - MAX_PROBLEMS) <= 0:
        return found
    return [*found[:MAX_PROBLEMS], ((), f"breaks {more:,} more rules or so; correct these first")]


def _is_deep(path: Path, value: JsonValue) -> bool:
    return bool(_find_too_deep(value, MAX_DEPTH - len(path)))


def _find_too_deep(value: JsonValue, most: int = MAX_DEPTH) -> Path:
    """Return the first parts of the path of a value that is nested too deep; () if none is.

    The search goes level by level, since Python bounds the depth of calls.
    """
    level: list[tuple[Path, JsonValue]] = [((), value)]
    for _ in range(most):
        level = [
            ((*path, part) if len(path) < SHOWN_DEPTH else path, below)
            for path, value in level
            for part, below in _items(value)
        ]
    # Prefer the spec: metadata.managedFields, where the API server copies its paths, is as deep.
    return min((path for path, _ in level), key=lambda path: path[0] != "spec", default=())


def _items(value: JsonValue) -> Iterable[tuple[str | int, JsonValue]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _find_hidden_rules(document: dict[str, JsonValue], wrong: frozenset[Path]) -> list[Found]:
    """Return broken rules that pydantic does not check because another field is wrong too."""
    search = _RuleSearch(document=document, wrong=wrong)
    search.build(DatasetExperiment, document, ())
    return search.found


@dataclass(slots=True, kw_only=True)
class _RuleSearch:
    """Builds the models without validation, from the valid fields, and checks their rules."""

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
            few = value[:MAX_LIST_ITEMS]  # a longer list is reported already
            return tuple(
                # A text in place of a mapping is valid where a field allows both.
                self.build(below, item, (*path, i)) if isinstance(item, dict) else item
                for i, item in enumerate(few)
            )
        return self.build(below, value, path)

    def _ask(self, instance: SpecModel, value: dict[str, JsonValue], path: Path) -> None:
        sound = not any(wrong[:-1] == path for wrong in self.wrong)
        try:
            for name, message in islice(instance.rules(), MAX_PROBLEMS + 1):
                broken = resolve_path(self.document, path, name)
                # To a rule, a misspelt or invalid field looks absent. So where the model has one,
                # report only the rules that are broken at fields that are given and valid.
                given = len(broken) > len(path) and broken[len(path)] in value
                if sound or (given and broken not in self.wrong):
                    self.found.append((broken, message))
        except (AttributeError, TypeError):
            return  # the rule needs a field that is invalid, which is reported already


def _freeze(value: JsonValue) -> Any:
    return tuple(value) if isinstance(value, list) else value
