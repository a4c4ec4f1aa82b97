"""Defines the parts of the CRD that no type states: patterns, list markers and printer columns.

`tools.crd` adds each to the schema of its field or model; `tools.crd_rules` has the CEL rules. An
entry mirrors a check of pipeline_runtime/config, and costs the API server nothing, unlike a rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline_runtime.config import (
    Code,
    EnvVar,
    Evaluation,
    ExperimentSpec,
    ExperimentStatus,
    IcebergTarget,
    ObjectReference,
    ParquetTarget,
    ScalingRules,
    SourceChoice,
    SpecModel,
    Training,
)
from pipeline_runtime.config.base import (
    MAX_SAFE_INTEGER,
    check_column,
    check_expression,
    check_script,
    check_store_uri,
    check_table_uri,
    check_unique,
    check_unique_names,
    check_uri,
)
from pipeline_runtime.config.cluster import (
    EnvSource,
    FieldReference,
    KeyReference,
    OptionalReference,
    PodGroup,
    ResourceFieldReference,
)
from pipeline_runtime.config.dataset import check_snapshot
from pipeline_runtime.config.decimals import (
    HOLDOUT_PATTERN,
    MAX_HOLDOUT_PERCENT,
    MAX_TEMPERATURE,
    NUMBER_PATTERN,
    PERCENT_PATTERN,
    check_constant,
    check_holdout_percent,
    check_number,
    check_percent,
    check_temperature,
)
from pipeline_runtime.config.pods.pod_security import HOST_NAMESPACES
from pipeline_runtime.config.quantities import MAX_QUANTITY_INTEGER, QUANTITY, check_quantity
from pipeline_runtime.config.texts.credentials import CONTAINER_SCHEMES, KEY_VALUE, QUERY_KEY
from pipeline_runtime.config.texts.prompt_template import TEMPLATE_PATTERN
from pipeline_runtime.steps.generate.model import check_prompt

Schema = dict[str, Any]

# The characters that Python's `str.strip` strips, written out, since `\s` is ASCII in RE2.
_SPACE = r"\p{Z}\t-\r\x1c-\x1f\x{85}"

# credentials.find_uri_credential, in RE2, which has neither look-ahead nor look-behind. The models
# refuse the rare forms that these simpler patterns allow, such as a percent-encoded query key.
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*"
_USER = r"""[^/@\s'"]"""
_CONTAINER = "|".join(sorted(CONTAINER_SCHEMES))
_PASSWORD_IN_URI = rf"{_SCHEME}://{_USER}*:{_USER}*@"
_USER_IN_URI = rf"{_SCHEME}://{_USER}+@"
_HARMLESS_USER = rf"""(^|[^A-Za-z0-9+.-])((?i:{_CONTAINER})://[^:/@\s'"]+|{_SCHEME}://git)@"""
_TWO_USERS = rf"(?s)://{_USER}+@.*://{_USER}+@"
_KEY_WORDS = QUERY_KEY.pattern.replace("|^sig$", "")
_SECRET_QUERY = rf"^[^?#]*\?([^#]*&)?([^#&=+%\s]*(?i:{_KEY_WORDS})[^#&=+%\s]*|(?i:sig))=[^&#]"
NO_CREDENTIALS: list[Schema] = [
    {"not": {"pattern": _PASSWORD_IN_URI}},
    {
        "anyOf": [
            {"not": {"pattern": _USER_IN_URI}},
            {"pattern": _HARMLESS_USER, "not": {"pattern": _TWO_USERS}},
        ]
    },
    {"not": {"pattern": _SECRET_QUERY}},
    {"not": {"pattern": KEY_VALUE.pattern}},
]


def _int_or_text(pattern: str, lowest: int, highest: int) -> Schema:
    """Return the keywords of an integer within bounds, or a text that matches a pattern."""
    either: list[Schema] = [{"type": "integer"}, {"type": "string"}]
    return {"anyOf": either, "pattern": pattern, "minimum": lowest, "maximum": highest}


_NO_PARENT: Schema = {"not": {"pattern": r"(^|/)\.\.(/|$)"}}
URI_SCHEMA: Schema = {"allOf": [{"not": {"pattern": r"^([^?]*/)?\.\.([/?]|$)"}}, *NO_CREDENTIALS]}

# The equivalent schema of each AfterValidator of a field.
VALIDATORS: Mapping[Callable[..., Any], Schema] = {
    check_unique: {"x-kubernetes-list-type": "set"},
    check_unique_names: {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    },
    check_column: {
        "anyOf": [{"not": {"pattern": "^_lastmile_"}}, {"enum": ["_lastmile_row_id"]}],
    },
    check_expression: {"pattern": f"[^{_SPACE}]"},
    check_uri: URI_SCHEMA,
    check_store_uri: URI_SCHEMA,  # not its newer rules, which must not refuse older objects
    check_table_uri: URI_SCHEMA,
    check_script: _NO_PARENT,
    check_prompt: {"pattern": TEMPLATE_PATTERN},
    check_percent: _int_or_text(PERCENT_PATTERN, 0, 100),
    check_holdout_percent: _int_or_text(HOLDOUT_PATTERN, 1, MAX_HOLDOUT_PERCENT),
    check_temperature: _int_or_text(PERCENT_PATTERN, 0, MAX_TEMPERATURE),
    check_number: _int_or_text(NUMBER_PATTERN, -MAX_SAFE_INTEGER, MAX_SAFE_INTEGER),
    check_constant: {
        "minimum": -MAX_SAFE_INTEGER,
        "maximum": MAX_SAFE_INTEGER,
        "multipleOf": 1,
    },
    check_snapshot: {},  # a rule of IcebergSource
    check_quantity: {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": f"^({re.sub(r'[?]P<[a-z]+>', '', QUANTITY.pattern)})$",
        "minimum": 0,
        # Bounds are float64 in the API server, which represents this one, but not one less.
        "maximum": MAX_QUANTITY_INTEGER + 1,
        "exclusiveMaximum": True,
    },
}

# steps.FilledColumn.value: booleans, integers and texts. A schema has no type for such a value, so
# exclude mappings and lists by bounds that none of them satisfies.
SCALAR_SCHEMA: Schema = {
    "x-kubernetes-preserve-unknown-fields": True,
    "minProperties": 1,
    "maxProperties": 0,
    "minItems": 1,
    "maxItems": 0,
}

# The part of pod_template.check_template about the pod as a whole.
_NEVER_TRUE: Schema = {"type": "boolean", "enum": [False]}
TEMPLATE_SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "metadata": {
            "description": "Labels and annotations; those of Ray and Lastmile are refused.",
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        },
        "spec": {
            "description": "Any field of a pod's spec, judged by a dry run first.",
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "properties": {
                "automountServiceAccountToken": {
                    "description": "Pods have no business with the Kubernetes API.",
                    **_NEVER_TRUE,
                },
                **{
                    field: {"description": "Pods do not share the host.", **_NEVER_TRUE}
                    for field in HOST_NAMESPACES
                },
            },
        },
    },
}
FIELD_SCHEMAS: Mapping[tuple[type[SpecModel], str], Schema] = {
    (PodGroup, "template"): TEMPLATE_SCHEMA,
}
# Texts, or lists of texts, that must not contain credentials, by a rule of their model.
TEXT_SCHEMAS: Mapping[tuple[type[SpecModel], str], Schema] = {
    (EnvVar, "value"): {"allOf": NO_CREDENTIALS},  # EnvVar._holds_secret
    (Code, "pip"): {"allOf": NO_CREDENTIALS},  # Code.rules
    (Training, "args"): {"allOf": NO_CREDENTIALS},  # Training.rules
}

# Lists that server-side apply merges item by item, with their keys. Lists of unique texts are sets.
# All other lists are atomic: their order matters, or their items have no key.
LIST_KEYS: Mapping[tuple[type[SpecModel], str], Sequence[str]] = {
    (ExperimentSpec, "env"): ["name"],
    (ScalingRules, "policies"): ["type", "periodSeconds"],
    (ExperimentStatus, "conditions"): ["type"],
}
# Mappings that are one value: the client that applies one owns all of it; two are never merged.
ATOMIC_MAPS = frozenset(
    {
        *SourceChoice.source_models().values(),
        ParquetTarget,
        IcebergTarget,
        Evaluation,
        EnvSource,
        ObjectReference,
    }
) | {OptionalReference, KeyReference, FieldReference, ResourceFieldReference}

# A column shows one field, so Desired is a column beside Workers.
PRINTER_COLUMNS: Sequence[Schema] = [
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "GPUs", "type": "integer", "jsonPath": ".status.gpus"},
    {"name": "Workers", "type": "integer", "jsonPath": ".status.dataWorkers.currentReplicas"},
    {"name": "Desired", "type": "integer", "jsonPath": ".status.dataWorkers.desiredReplicas"},
    {"name": "GPU%", "type": "integer", "jsonPath": ".status.trainer.gpuUtilizationPercent"},
    {"name": "Wait%", "type": "integer", "jsonPath": ".status.trainer.productionWaitPercent"},
    {"name": "Progress", "type": "integer", "jsonPath": ".status.trainer.progressPercent"},
    {"name": "Rows", "type": "integer", "jsonPath": ".status.output.rows"},
    {"name": "Rows/s", "type": "string", "jsonPath": ".status.trainer.samplesPerSecond"},
    {"name": "ETA", "type": "string", "jsonPath": ".status.trainer.estimatedRemaining"},
    {"name": "Cost", "type": "string", "jsonPath": ".status.usage.cost"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]
