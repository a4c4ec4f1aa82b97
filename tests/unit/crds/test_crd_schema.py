"""The committed CRD is what the models give, is structural and bounded, and takes the samples.

CEL is not run here: tests/integration/cluster/crd asks a real API server.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from jsonschema import Draft4Validator
from pydantic import AfterValidator, Field
from toy_consumer.model import ToySpec

from pipeline_runtime.config import DatasetExperiment, SpecModel, read_documents
from pipeline_runtime.config.base import Column, Text, check_unique
from pipeline_runtime.config.introspect import find_model, walk_fields
from pipeline_runtime.config.reading.manifest import load_manifests
from tools.crd import CRD_FILE, build_crd, build_schema, render
from tools.crd_rules import RULES, consumer_rules

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests" / "corpus" / "broken"
Schema = dict[str, Any]

CRD: Schema = yaml.safe_load(CRD_FILE.read_text(encoding="utf-8"))
(VERSION,) = CRD["spec"]["versions"]
WHOLE: Schema = VERSION["schema"]["openAPIV3Schema"]

# What may stand below allOf, anyOf and not in a structural schema (Kubernetes, custom resource
# definitions, «Specifying a structural schema»).
VALUE_WORDS = {"pattern", "enum", "not", "allOf", "anyOf", "minimum", "maximum"}
VALUE_WORDS |= {"minLength", "required", "minProperties"}
# A client-side `kubectl apply` keeps the object as JSON in an annotation of at most 256 KiB.
MAX_CRD_BYTES = 150_000


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every schema that a value has, with its path."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from walk(below, f"{path}.{name}")
    for word, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if word in schema:
            yield from walk(schema[word], path + mark)


SCHEMAS = dict(walk(WHOLE))
SPEC = {path: schema for path, schema in SCHEMAS.items() if path.startswith(".spec")}


def test_items_of_lists_have_no_defaults() -> None:
    found = [path for path, schema in SPEC.items() if "[]" in path and "default" in schema]
    assert not found, "Argo CD would report every manifest that leaves the field out as OutOfSync"


def test_rules_of_items_expect_fields_to_be_absent() -> None:
    found = [
        (path, rule["rule"], name)
        for path, schema in SPEC.items()
        if "[]" in path
        for rule in schema.get("x-kubernetes-validations", ())
        for name in re.findall(r"\bself\.(\w+)", rule["rule"])
        if name in schema.get("properties", {}).keys() - set(schema.get("required", ()))
        and f"has(self.{name})" not in rule["rule"]
    ]
    assert not found, "a rule that reads an absent field without a default fails"


def test_the_committed_file_is_what_make_crd_writes() -> None:
    written = CRD_FILE.read_text(encoding="utf-8")
    assert written == render(build_crd()), "run make crd and commit crds/"
    assert len(json.dumps(build_crd(), separators=(",", ":"))) < MAX_CRD_BYTES


def test_the_rules_of_a_consumer_follow_from_its_field() -> None:
    rules = [rule.rule for rule in consumer_rules(ToySpec)]
    for other in ("training", "output", "trainers", "autoscaling"):
        assert any(rule.startswith(f"!has(self.sum) || !has(self.{other})") for rule in rules)


def test_the_names_are_those_of_the_api() -> None:
    assert CRD["metadata"]["name"] == "datasetexperiments.experiments.lastmile.dev"
    assert CRD["spec"]["names"]["shortNames"] == ["dsexp"]
    assert CRD["spec"]["names"]["categories"] == ["lastmile"]  # never in `all`
    assert CRD["spec"]["scope"] == "Namespaced"
    assert VERSION["subresources"] == {"status": {}}


def test_every_printer_column_shows_a_field_that_there_is() -> None:
    columns = {item["name"]: item["jsonPath"] for item in VERSION["additionalPrinterColumns"]}
    assert list(columns) == [
        *("Phase", "GPUs", "Workers", "Desired", "GPU%", "Wait%", "Progress"),
        *("Rows", "Rows/s", "ETA", "Cost", "Age"),
    ]
    assert [path for path in columns.values() if path not in SCHEMAS] == [
        ".metadata.creationTimestamp"
    ]


@pytest.mark.parametrize("path", SCHEMAS)
def test_a_schema_is_structural(path: str) -> None:
    schema = SCHEMAS[path]
    assert "$ref" not in schema
    free = {"x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"}
    assert ("type" in schema) != bool(free & schema.keys() and "type" not in schema)
    junctors = [*schema.get("allOf", ()), *schema.get("anyOf", ())]
    if "x-kubernetes-int-or-string" in schema:
        assert junctors == [{"type": "integer"}, {"type": "string"}]
        return
    while junctors:
        inner = junctors.pop()
        assert inner.keys() <= VALUE_WORDS
        junctors += [*inner.get("allOf", ()), *inner.get("anyOf", ())]
        junctors += [inner["not"]] if "not" in inner else []


def is_value(path: str) -> bool:
    """Return whether a path is that of an item or a value: its list or mapping describes it."""
    return path.endswith(("[]", "{}"))


def test_every_field_has_a_description() -> None:
    bare = [p for p, s in SCHEMAS.items() if not s.get("description") and not is_value(p)]
    assert bare == [".metadata"]


def test_no_description_is_a_fragment() -> None:
    texts = {schema["description"] for schema in SCHEMAS.values() if "description" in schema}
    assert [t for t in texts if not (t.endswith(".") and (t[0].isupper() or t[0] in "`"))] == []


@pytest.mark.parametrize("path", SPEC)
def test_what_a_rule_may_walk_is_bounded(path: str) -> None:
    schema = SPEC[path]
    kind = schema.get("type")
    if kind == "array":
        assert schema["maxItems"] > 0
    elif kind == "string":
        assert "maxLength" in schema or "enum" in schema
    elif kind == "object" and "additionalProperties" in schema:
        assert schema["maxProperties"] > 0
    elif kind == "integer":
        assert "minimum" in schema
        assert "maximum" in schema or schema["format"] == "int64"


@pytest.mark.parametrize("path", [path for path, s in SCHEMAS.items() if s.get("type") == "array"])
def test_a_list_says_how_server_side_apply_merges_it(path: str) -> None:
    schema = SCHEMAS[path]
    match schema["x-kubernetes-list-type"]:
        case "set":
            assert schema["items"]["type"] == "string"
        case "map":
            assert set(schema["x-kubernetes-list-map-keys"]) <= set(schema["items"]["required"])
        case other:
            assert other == "atomic"


def test_the_lists_that_are_merged_item_by_item() -> None:
    keyed = {p: s["x-kubernetes-list-map-keys"] for p, s in SCHEMAS.items() if KEYS in s}
    assert keyed == {
        ".spec.env": ["name"],
        ".spec.catalogs": ["name"],
        **{f".spec.pipeline[].{kind}.columns": ["name"] for kind in COLUMNS_BY_NAME},
        ".spec.pipeline[].map.outputColumns": ["name"],
        ".spec.pipeline[].embed.outputs": ["name"],
        ".spec.pipeline[].generate.outputs": ["name"],
        ".spec.pipeline[].measure.metrics": ["name"],
        ".spec.pipeline[].predict.ablation.groups": ["name"],
        ".spec.pipeline[].predict.models": ["name"],
        ".spec.pipeline[].predict.models[].outputs": ["name"],
        ".spec.inferenceWorkers": ["name"],
        ".spec.autoscaling.scaleUp.policies": ["type", "periodSeconds"],
        ".spec.autoscaling.scaleDown.policies": ["type", "periodSeconds"],
        ".status.conditions": ["type"],
        ".status.inferenceWorkers": ["name"],
        ".status.usage.accounted.groups": ["name"],
        ".status.scaling.decisions[].inputs": ["name"],
    }


KEYS = "x-kubernetes-list-map-keys"
COLUMNS_BY_NAME = ("derive", "rename", "cast", "fillNull")


def test_the_fields_are_the_models() -> None:
    def dotted(path: tuple[str | int, ...]) -> str:
        return "".join("[]" if part == 0 else f".{part}" for part in path)

    wanted = {dotted(path) for path, _ in walk_fields(DatasetExperiment)}
    wanted = {path for path in wanted if not path.startswith(".metadata.")}
    opaque = re.compile(r"\.template\.|(\[\]|\{\})$")
    assert {path for path in SCHEMAS if path and not opaque.search(path)} == wanted


def test_defaults_are_scalars_and_none_is_in_the_status() -> None:
    defaults = {path: s["default"] for path, s in SCHEMAS.items() if "default" in s}
    assert defaults[".spec.dataWorkers.maxReplicas"] == 50
    assert {type(value) for value in defaults.values()} == {bool, int, str}
    assert [path for path in defaults if not path.startswith(".spec")] == []


def test_every_rule_names_the_python_rule_that_it_mirrors() -> None:
    for rule in (rule for rules in RULES.values() for rule in rules):
        assert rule.mirrors
        assert rule.message
        assert "\n" not in rule.rule


def all_models(model: type[SpecModel]) -> Iterator[type[SpecModel]]:
    yield model
    for field in model.model_fields.values():
        if below := find_model(field.annotation):
            yield from all_models(below)


def test_a_rule_stands_where_its_model_does() -> None:
    models = set(all_models(DatasetExperiment))
    bases = {base for model in models for base in model.__mro__}
    assert [model for model in RULES if model not in bases] == []
    said = {json.dumps(r) for s in SCHEMAS.values() for r in s.get("x-kubernetes-validations", ())}
    assert [
        rule
        for rules in RULES.values()
        for rule in rules
        if json.dumps(rule.to_schema()) not in said
    ] == []


class Later(SpecModel):
    """A model of some later release. Its first field is inherited by nothing."""

    share: Annotated[int, Field(ge=0, le=100)] = 5
    """The share, in percent."""
    places: Annotated[tuple[Column, ...], Field(max_length=3), AfterValidator(check_unique)]
    """The columns."""
    nested: Annotated[dict[Text, bool], Field(max_length=9)] | None = None


def test_a_field_s_type_bounds_default_and_docstring_become_its_schema() -> None:
    schema = build_schema(Later | None)
    assert schema["description"].startswith("A model of some later release.")
    assert schema["required"] == ["places"]
    assert schema["properties"]["share"] == {
        "type": "integer",
        "format": "int32",
        "minimum": 0,
        "maximum": 100,
        "description": "The share, in percent.",
        "default": 5,
    }
    assert schema["properties"]["places"]["x-kubernetes-list-type"] == "set"
    rules = [rule["rule"] for rule in schema["properties"]["nested"]["x-kubernetes-validations"]]
    assert rules[:2] == ["!('' in self)", "self.all(key, key.size() <= 1024)"]


KEY_ITEMS = [
    *((True, item) for item in ["a", "_lastmile_row_id", "x" * 256, {"left": "a", "right": "b"}]),
    *((False, item) for item in ["", "x" * 257, "_lastmile_x", 1, True, [], ["a"], {}]),
    *((False, item) for item in [{"left": "a"}, {"left": "a", "right": "b", "x": "c"}]),
    *((False, {"left": "a", "right": wrong}) for wrong in ["", 1, "_lastmile_x", {}]),
]


@pytest.mark.parametrize(("is_valid", "item"), KEY_ITEMS)
def test_an_item_of_keys_is_a_text_or_a_pair(is_valid: bool, item: Any) -> None:
    schema = SCHEMAS[".spec.pipeline[].join.keys[]"]
    assert Draft4Validator(schema).is_valid(item) == is_valid


NUMBERS = {
    ".spec.pipeline[].downsample.keepPercent": (
        [0, 100, "0", "100.0", "0.5", "12.345678", "99.999999"],
        [-1, 101, 0.5, True, "", "100.1", "-1", "1e1", ".5", "5.", "0.0000001", [], {}],
    ),
    ".spec.training.evaluation.holdoutPercent": (
        [1, 50, "1", "50.0", "49.999999", "0.5", "0.000001"],
        [0, 51, 0.5, "0", "0.0", "50.000001", "00.5", "0.0000001", "60"],
    ),
    ".spec.pipeline[].padSequence.value": (
        [0, -7, 2**53 - 1, "0.5", "-1e300", str(2**63)],
        [2**53, 0.5, "", "nan", "1.", "1e9999", "x", True, None],
    ),
    ".spec.pipeline[].fillNull.columns[].value": (
        [True, 0, 1 - 2**53, "", "text", "0.5"],
        [2**53, 0.5, [], {}, [1], {"a": 1}],
    ),
}


@pytest.mark.parametrize("path", NUMBERS)
def test_a_number_is_an_integer_or_a_decimal_text(path: str) -> None:
    good, bad = NUMBERS[path]
    validator = Draft4Validator(for_python(SCHEMAS[path]))
    assert [value for value in good if not validator.is_valid(value)] == []
    assert [value for value in bad if validator.is_valid(value)] == []


@pytest.mark.parametrize("annotation", [bytes, bool | str, list[int], set[str]])
def test_a_type_that_no_schema_can_say_is_an_error(annotation: Any) -> None:
    with pytest.raises(TypeError, match="schema"):
        build_schema(annotation)


# Python's `re` has no \p{…}: what these stand for here is near enough for these manifests.
UNICODE = {
    r"[\p{L}\p{M}\p{N}\p{Pc}]": r"\w",
    r"\p{Z}\t-\r\x1c-\x1f\x{85}": r"\s",
    r"\p{Z}\t-\r\x{85}": r"\s",
}


def for_python(schema: Any) -> Any:
    """The schema with patterns that Python reads, and unknown fields refused as Strict does."""
    if isinstance(schema, list):
        return [for_python(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {word: for_python(value) for word, value in schema.items()}
    if isinstance(pattern := schema.get("pattern"), str):
        for theirs, ours in UNICODE.items():
            pattern = pattern.replace(theirs, ours)
        out["pattern"] = pattern
    known = isinstance(schema.get("properties"), dict)
    if known and "x-kubernetes-preserve-unknown-fields" not in schema:
        out["additionalProperties"] = False
    return out


METADATA = {"properties": {**WHOLE["properties"], "metadata": {"type": "object"}}}
KEYWORDS_ONLY = Draft4Validator(for_python(WHOLE | METADATA))


@pytest.mark.parametrize("path", sorted((ROOT / "deploy" / "samples").glob("*.yaml")))
def test_a_sample_is_valid(path: Path) -> None:
    for loaded in load_manifests(path):
        assert list(KEYWORDS_ONLY.iter_errors(loaded.document)) == []


# Of the corpus: what no keyword refuses, and who does. The integration test asks an API server.
# (29 is the other way round: the API server takes nulls out before it looks.)
BEYOND_KEYWORDS = {
    "whoever reads the YAML": [*range(1, 10), 11, 12, 14],
    "the API server, which has no such kind or version": [17, 18],
    "the API server, whose own the metadata is": [22],
    "a CEL rule": [13, 20, 21, 30, 31, 32, 36, 37, 47, 49, 76],
    "a model, as a free-form part of the spec has no schema": [45, 53, 70],
    "the plan, which knows the table's columns": range(60, 70),
}


def documents_in(path: Path) -> list[Any]:
    read = read_documents(path.read_text(encoding="utf-8"), path.name)
    return [document.value for document in read if document.value is not None]


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_broken_manifest_is_refused_by_keywords_or_beyond_them(path: Path) -> None:
    refused = [error for value in documents_in(path) for error in KEYWORDS_ONLY.iter_errors(value)]
    number = int(path.stem.partition("-")[0])
    beyond = [who for who, numbers in BEYOND_KEYWORDS.items() if number in numbers]
    assert len(beyond) == (0 if refused else 1), beyond
