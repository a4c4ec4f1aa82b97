"""Write crds/datasetexperiments.yaml from the models in pipeline_runtime/config; see `make crd`.

The file is a link into the chart, whose other generated files `tools.chart` writes.

Types, bounds, enums and scalar defaults come from the models, descriptions from their docstrings;
`tools.crd_rules` adds CEL rules, and `tools.crd_schemas` list markers and the validators' patterns.
tests/unit/crds checks that the committed file is up to date, and tests/integration/cluster that a
real API server judges as the models do.
"""

import ast
import functools
import inspect
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import annotated_types
import yaml
from pydantic import AfterValidator, Discriminator, StringConstraints, Tag
from pydantic.fields import FieldInfo

from pipeline_runtime.config import GROUP, KIND, VERSION, DatasetExperiment, SpecModel
from pipeline_runtime.config.base import MAX_INT32
from pipeline_runtime.config.experiment_status import StatusModel
from pipeline_runtime.config.introspect import field_names, find_model
from pipeline_runtime.config.source_model import SourceModel
from pipeline_runtime.config.step_model import StepModel
from tools.crd_rules import RULES, Rule
from tools.crd_schemas import (
    ATOMIC_MAPS,
    FIELD_SCHEMAS,
    LIST_KEYS,
    PRINTER_COLUMNS,
    SCALAR_SCHEMA,
    TEXT_SCHEMAS,
    VALIDATORS,
    Schema,
)

PLURAL = "datasetexperiments"
CRD_FILE = Path(__file__).resolve().parent.parent / "crds" / f"{PLURAL}.yaml"
HEADER = """\
# Written by `make crd` from the models in pipeline_runtime/config, tools/crd_rules.py and
# tools/crd_schemas.py. `kubectl explain dsexp.spec --recursive` prints its descriptions.
"""
LINE_CHARS = 100

# Keywords of a schema, in the order in which they are written.
KEYWORDS = (
    *("description", "type", "x-kubernetes-int-or-string", "format", "enum", "default"),
    *("minimum", "maximum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern"),
    *("minItems", "maxItems", "minProperties", "maxProperties", "allOf", "anyOf", "not"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"),
    *("x-kubernetes-preserve-unknown-fields", "rule", "message", "fieldPath"),
    *("x-kubernetes-validations", "required"),
    *("properties", "additionalProperties", "items"),
)

T = TypeVar("T")

_PLAIN_TYPES = {bool: "boolean", int: "integer", str: "string"}
_OBJECT_META = {
    "apiVersion": "Version of this object's schema: `experiments.lastmile.dev/v1alpha1`.",
    "kind": "Kind of this object: `DatasetExperiment`.",
}


def build_crd() -> Schema:
    """Return the CustomResourceDefinition."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": list(PRINTER_COLUMNS),
        "schema": {"openAPIV3Schema": _sort(_build_root())},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["dsexp"],
                # Not in `all`: `kubectl delete all --all` would delete experiments.
                "categories": ["lastmile"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def _build_root() -> Schema:
    """Return the schema of the whole object; its metadata is the API server's own affair."""
    fields = DatasetExperiment.model_fields
    return {
        "description": find_summary(DatasetExperiment),
        "type": "object",
        "required": ["spec"],
        "properties": {
            **{name: {"description": t, "type": "string"} for name, t in _OBJECT_META.items()},
            "metadata": {"type": "object"},
            "spec": build_schema(fields["spec"].annotation),
            "status": build_schema(fields["status"].annotation),
        },
        "x-kubernetes-validations": [rule.to_schema() for rule in RULES[DatasetExperiment]],
    }


def build_schema(annotation: Any, constraints: Iterable[Any] = ()) -> Schema:
    """Return the structural schema of a field's type.

    Args:
        annotation: such as `X | None`, `tuple[X, ...]`, `dict[str, X]`, `Annotated[X, …]`.
        constraints: the metadata of the `Annotated` around it.

    Raises:
        TypeError: this function knows no schema for the type.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return build_schema(args[0], [*args[1:], *constraints])
    if origin in (Union, types.UnionType):
        return _constrain(_build_union([arg for arg in args if arg is not type(None)]), constraints)
    return _constrain(_build_plain(annotation, origin, args), constraints)


def _build_union(members: Sequence[Any]) -> Schema:
    if len(members) == 1:
        return build_schema(members[0])
    text, model = members[0], find_model(members[-1])
    if len(members) == 2 and model and get_args(text)[:1] == (str,):
        return _build_name_or_object(build_schema(text), build_schema(model))
    match set(members):
        case kinds if kinds == {int, str}:
            return {"x-kubernetes-int-or-string": True}
        case kinds if any(get_origin(kind) is Literal for kind in kinds) and len(kinds) == 2:
            either = [{"type": "integer"}, {"type": "string"}]  # `crd_rules` has the bounds
            return {"x-kubernetes-int-or-string": True, "anyOf": either}
        case kinds if kinds == {bool, int, str}:
            return dict(SCALAR_SCHEMA)
    raise TypeError(f"must be a union that a structural schema can express, got {members!r}")


def _build_name_or_object(text: Schema, mapping: Schema) -> Schema:
    """Return the schema of a text or a mapping whose fields are all required.

    A structural schema cannot have a type below `anyOf`. But keywords of texts restrict texts
    only, and keywords of mappings restrict mappings only: every other value satisfies them. So
    the negation of a keyword that no valid value satisfies distinguishes the two.
    """
    of_text = {word: value for word, value in text.items() if word not in ("type", "maxLength")}
    return {
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": mapping["properties"],
        "anyOf": [
            of_text | {"not": {"minLength": text["maxLength"] + 1}},
            {
                "required": mapping["required"],
                "not": {"minProperties": len(mapping["required"]) + 1},
            },
        ],
    }


def _build_plain(annotation: Any, origin: Any, args: Sequence[Any]) -> Schema:
    if origin is Literal:
        return {"type": "string", "enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _drop_defaults(build_schema(args[0]))}
    if origin is dict and _is_free(args[1]):
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if origin is dict:
        return _build_mapping(*args)
    if annotation in _PLAIN_TYPES:
        return {"type": _PLAIN_TYPES[annotation]}
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return _build_object(annotation)
    raise TypeError(f"must be a type that a structural schema can express, got {annotation!r}")


def _drop_defaults(schema: Schema) -> Schema:
    """Return the schema of a list's items without defaults.

    The API server would write them into the stored list. Argo CD compares such a list as one value,
    so that a manifest which leaves a field with a default out would never be in sync.
    """
    kept = {word: value for word, value in schema.items() if word != "default"}
    if properties := kept.get("properties"):
        kept["properties"] = {name: _drop_defaults(below) for name, below in properties.items()}
    return kept


def _build_mapping(keys: Any, values: Any) -> Schema:
    schema: Schema = {"type": "object", "additionalProperties": build_schema(values)}
    rules = [
        {"rule": rule, "message": f"must have keys {words}"} for rule, words in _key_rules(keys)
    ]
    return schema | {"x-kubernetes-validations": rules}


def _key_rules(annotation: Any) -> Iterator[tuple[str, str]]:
    """Yield the rules of a mapping's keys, in CEL and in words; separate rules cost less."""
    for constraint in get_args(annotation)[1:]:
        match constraint:
            case StringConstraints(min_length=1, max_length=most):
                yield "!('' in self)", "that are not empty"
                yield f"self.all(key, key.size() <= {most})", f"of at most {most} characters"
            case _:
                raise TypeError(f"must be a constraint of a key, got {constraint!r}")


def _is_free(annotation: Any) -> bool:
    return getattr(annotation, "__name__", "") == "JsonValue"


def _constrain(schema: Schema, constraints: Iterable[Any]) -> Schema:
    """Add bounds, patterns and the schemas of validators."""
    for constraint in constraints:
        match constraint:
            case FieldInfo():
                schema = _constrain(schema, constraint.metadata)
            case StringConstraints():
                schema |= _given(
                    minLength=constraint.min_length,
                    maxLength=constraint.max_length,
                    pattern=constraint.pattern,
                )
            case annotated_types.MinLen():
                schema |= {_size_word("min", schema): constraint.min_length}
            case annotated_types.MaxLen():
                schema |= {_size_word("max", schema): constraint.max_length}
            case annotated_types.Ge():
                schema |= {"minimum": constraint.ge}
            case annotated_types.Le():
                schema |= _build_maximum(constraint.le)
            case AfterValidator():
                schema = _merge(schema, VALIDATORS[constraint.func])
            case Tag() | Discriminator():
                continue  # they choose the member of a union, which the schema shows
            case _ if pattern := getattr(constraint, "pattern", None):
                schema |= {"pattern": pattern}
            case _:
                raise TypeError(f"must be a constraint that a schema has, got {constraint!r}")
    return schema


def _given(**values: Any) -> Schema:
    return {name: value for name, value in values.items() if value is not None}


def _size_word(bound: str, schema: Schema) -> str:
    words = {"string": "Length", "array": "Items", "object": "Properties"}
    return bound + words[schema["type"]]


def _build_maximum(maximum: Any) -> Schema:
    return {"format": "int32" if maximum <= MAX_INT32 else "int64", "maximum": maximum}


def _merge(schema: Schema, extra: Schema) -> Schema:
    """Add a validator's schema, below allOf if the two have a keyword in common."""
    clash = schema.keys() & extra.keys() - {"allOf"}
    if clash:
        extra = {"allOf": [extra]}
    all_of = [*schema.get("allOf", ()), *extra.get("allOf", ())]
    return schema | extra | ({"allOf": all_of} if all_of else {})


def _build_object(model: type[SpecModel]) -> Schema:
    names = field_names(model)
    required = [alias for alias, name in names.items() if model.model_fields[name].is_required()]
    schema: Schema = {"description": find_summary(model), "type": "object"}
    if required:
        schema["required"] = required
    schema["properties"] = {alias: _build_field(model, name) for alias, name in names.items()}
    if model in ATOMIC_MAPS:
        schema["x-kubernetes-map-type"] = "atomic"
    # The rules of SourceChoice hold for every model that is one.
    rules = [rule for base in reversed(model.__mro__) for rule in RULES.get(base, ())]
    if issubclass(model, StepModel | SourceModel):
        rules += [Rule(mirrors=f"{model.__name__}.rules", **r._asdict()) for r in model.cel_rules]
    if rules:
        schema["x-kubernetes-validations"] = [rule.to_schema() for rule in rules]
    return schema


def _build_field(model: type[SpecModel], name: str) -> Schema:
    field = model.model_fields[name]
    schema = dict(_by_field(FIELD_SCHEMAS, model, name) or {})
    schema = schema or build_schema(field.annotation, field.metadata)
    # Readers of conditions parse these fields as times.
    if is_time_field(model, name):
        schema["format"] = "date-time"
    if extra := _by_field(TEXT_SCHEMAS, model, name):
        texts = schema.get("items", schema)
        texts |= _merge(texts, extra)
    if schema.get("type") == "array":
        schema = _mark_list(schema, _by_field(LIST_KEYS, model, name) or ())
    default = field.get_default(call_default_factory=True)
    # Only scalars: an empty mapping adds nothing. None in the status: a field that the operator did
    # not write has no value.
    if isinstance(default, bool | int | str) and not issubclass(model, StatusModel):
        schema["default"] = default
    text = find_description(model, name) or schema.pop("description", "")
    schema.pop("description", None)
    return {"description": text, **schema}


def is_time_field(model: type[SpecModel], name: str) -> bool:
    """Return whether a field of the status has a time."""
    return issubclass(model, StatusModel) and (name == "time" or name.endswith("_time"))


def _by_field(
    table: Mapping[tuple[type[SpecModel], str], T], model: type[SpecModel], name: str
) -> T | None:
    """Return the entry of a field, under the model that declares it or one that inherits it."""
    return next((table[base, name] for base in model.__mro__ if (base, name) in table), None)


def _mark_list(schema: Schema, keys: Sequence[str]) -> Schema:
    """Declare how server-side apply merges a list: by key, as a set, or not at all."""
    if keys:
        return {
            **schema,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": list(keys),
        }
    return {"x-kubernetes-list-type": "atomic"} | schema


def find_description(model: type[SpecModel], name: str) -> str:
    """Return the docstring below a field; empty if it has none, and its model's is used."""
    for base in model.__mro__:
        if issubclass(base, SpecModel) and (text := _attribute_docstrings(base).get(name)):
            return text
    return ""


@functools.cache
def _attribute_docstrings(model: type) -> dict[str, str]:
    """Return the string below each field, by the field's name; Python itself keeps none."""
    try:
        (tree,) = ast.parse(inspect.getsource(model)).body
    except OSError:  # a class without source, such as the fields of `Step`
        return {}
    if not isinstance(tree, ast.ClassDef):
        raise TypeError(f"must be a class, got {model!r}")
    found = {}
    for statement, below in zip(tree.body, tree.body[1:], strict=False):
        match statement, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = _unwrap(text)
    return found


def find_summary(model: type) -> str:
    """Return the first paragraph of a class's docstring, on one line."""
    return next(iter(find_paragraphs(model)), "")


def find_paragraphs(model: type) -> list[str]:
    """Return the paragraphs of a class's docstring, each on one line."""
    return [_unwrap(text) for text in (inspect.getdoc(model) or "").split("\n\n")]


def _unwrap(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def list_members(annotation: Any) -> list[Any]:
    """Return the members of a union, or the annotation alone; an `Annotated` may wrap a union."""
    if get_origin(annotation) is Annotated and _is_union(get_args(annotation)[0]):
        annotation = get_args(annotation)[0]
    if _is_union(annotation):
        return [member for member in get_args(annotation) if member is not type(None)]
    return [annotation]


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


class _Dumper(yaml.SafeDumper):
    """Writes block style without anchors (repeated values are repeated), and folds long texts."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        quoted = "'" in data or ": " in data or data.startswith(("!", "[", "`"))
        style = ">" if quoted and len(data) > LINE_CHARS // 2 else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def _sort(schema: Any) -> Any:
    """Order the keywords of a schema as a person reads them."""
    if isinstance(schema, list):
        return [_sort(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    below = {
        word: {name: _sort(item) for name, item in value.items()}
        if word == "properties"
        else _sort(value)
        for word, value in schema.items()
    }
    return dict(sorted(below.items(), key=lambda item: KEYWORDS.index(item[0])))


def render(crd: Schema) -> str:
    """Return the file's text."""
    body = yaml.dump(crd, Dumper=_Dumper, sort_keys=False, width=LINE_CHARS, allow_unicode=True)
    return HEADER + body


def main() -> None:
    """Write the file."""
    CRD_FILE.parent.mkdir(exist_ok=True)
    CRD_FILE.write_text(render(build_crd()), encoding="utf-8")
    print(f"wrote {CRD_FILE.name}, {CRD_FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
