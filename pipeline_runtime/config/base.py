"""The base class and the field types of all models of the spec.

The models (`dataset`, `steps`, `training`, `cluster`, `experiment`) build on them. `validation`
fills the models from a document, and `wording` words their errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from pipeline_runtime.config.texts.credentials import (
    find_option_credentials,
    find_uri_credential,
    hide_credentials,
)
from pipeline_runtime.config.texts.storage_uri import find_uri_fault

# Strings and lists are bounded, since a Kubernetes object may have 1.5 MiB and its annotations
# 256 KiB. The bounds also keep the CEL rules of the CRD within their cost budget.
MAX_LIST_ITEMS = 256
MAX_COLUMNS = 4096
MAX_STRING_CHARS = 1024
MAX_EXPRESSION_CHARS = 16_384

# 2**31 - 1: Kubernetes' int32, large enough for each counter and number of seconds in a spec.
MAX_INT32 = 2_147_483_647
# 2**53 - 1: the largest integer of programs that read JSON's numbers as float64, such as jq.
MAX_SAFE_INTEGER = 9_007_199_254_740_991
# 2**63 - 1: the largest integer of Iceberg's snapshots.
MAX_INT64 = 9_223_372_036_854_775_807


N = TypeVar("N", bound="Named")


class RuleSet(Enum):
    """The rules that a document is judged by.

    Rules may be newer than a stored object, and must not end its run. Types, bounds and the rules
    of a single field hold in each of the sets.
    """

    ALL = "all"
    WITHOUT_NEWER = "without newer"  # skips the place of a URI, and the size of free-form fields
    NONE = "none"  # skips these, and all rules between fields


# The key of the RuleSet in the context of a validation.
RULE_SET = "rule_set"


def _find_rule_set(info: ValidationInfo) -> RuleSet:
    rules: RuleSet = (info.context or {}).get(RULE_SET, RuleSet.ALL)
    return rules


def rule_error(message: str) -> PydanticCustomError:
    """Return the error of a broken rule of one field; braces in the message stay as they are."""
    return PydanticCustomError("rule", "{message}", {"message": message})


class SpecModel(BaseModel):
    """A part of the spec: frozen, with camelCase names in documents, and without unknown fields.

    A subclass checks its rules between fields in `rules`. All broken rules are reported, each at
    its own field.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        strict=True,
        use_enum_values=True,
    )

    def rules(self) -> Iterator[tuple[str, str]]:
        """Yield (field in camelCase, message) for every broken rule between fields."""
        yield from ()

    @model_validator(mode="after")
    def _check_rules(self, info: ValidationInfo) -> Self:
        broken = [] if _find_rule_set(info) is RuleSet.NONE else list(self.rules())
        if broken:
            # `wording` makes one Problem of each; the text is for direct callers of the model.
            text = "; ".join(": ".join(filter(None, pair)) for pair in broken)
            raise PydanticCustomError("rules", "{text}", {"broken": broken, "text": text})
        return self

    def to_document(self) -> dict[str, Any]:
        """Return the model as a manifest has it: in camelCase, without unset fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)


class ConsumerModel(SpecModel):
    """A section of the spec that takes the resulting rows in place of a training.

    Attributes:
        module: module of its planning, with a function `open_consumer(spec)` that returns a
            `plan.consumers.Consumer`.
        unhashed_fields: fields, in camelCase, that do not decide what a run results in.
    """

    module: ClassVar[str]
    unhashed_fields: ClassVar[tuple[str, ...]] = ()


class CelRule(NamedTuple):
    """A rule between the fields of a model, as the CRD has it; `rules` has it for Python."""

    rule: str  # true for a valid object, which is `self`
    message: str
    field: str = ""  # in camelCase


def check_one_of(names: Sequence[str], given: Sequence[str]) -> str | None:
    """Return the broken rule, unless exactly one of the named fields is given."""
    if len(given) == 1:
        return None
    got, advice = (" and ".join(given), "keep one") if given else ("none", "add one")
    return f"must have exactly one of {', '.join(names)}, got {got}; {advice}"


def check_uri(value: str) -> str:
    """Refuse a URI with a credential: credentials come from the environment or a Secret."""
    if credential := find_uri_credential(value):
        raise rule_error(
            f"must not carry credentials, got {credential}; give them in the environment or "
            "through storage.secretRef"
        )
    if ".." in value.split("?")[0].split("/"):
        raise rule_error(
            f"must not contain '..', got {hide_credentials(value)!r}; give the path in full"
        )
    return value


def check_store_uri(value: str, info: ValidationInfo) -> str:
    """Refuse a folder's URI that has more than a place in a store, such as a query."""
    return _check_place(value, info, is_glob=False)


def check_table_uri(value: str, info: ValidationInfo) -> str:
    """Refuse a table's URI that has more than a place in a store; its path may be a glob."""
    return _check_place(value, info, is_glob=True)


def _check_place(value: str, info: ValidationInfo, *, is_glob: bool) -> str:
    check_uri(value)
    fault = find_uri_fault(value, is_glob=is_glob)
    if fault and _find_rule_set(info) is RuleSet.ALL:
        raise rule_error(fault)
    return value


def check_options(field: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield a broken rule for each value of free-form options that looks like a credential."""
    for path, what in find_option_credentials(value, field):
        yield path, _explain_credential(what)


def check_arguments(field: str, arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a broken rule for each command-line argument that looks like a credential."""
    for index, (before, argument) in enumerate(pairwise(("", *arguments))):
        if argument.startswith("-"):
            name, _, value = argument.partition("=")
        else:
            name, value = before if before.startswith("-") else "", argument
        for _, what in find_option_credentials({name.strip("-"): value}):
            yield f"{field}[{index}]", _explain_credential(what)


def _explain_credential(what: str) -> str:
    return (
        f"must not carry credentials, got {what}; give them through env with valueFrom and read "
        "the environment"
    )


def check_expression(value: str) -> str:
    if not value.strip():
        raise rule_error("must be an expression, got an empty string; leave the field out instead")
    return value


def check_unique(value: tuple[str, ...]) -> tuple[str, ...]:
    repeated = [item for item, count in Counter(value).items() if count > 1]
    if repeated:
        raise rule_error(f"must not repeat an item, got {repeated[0]!r} twice; remove one")
    return value


class Named(Protocol):
    """An item of a list that is known by its name."""

    @property
    def name(self) -> str: ...


def check_unique_names(value: tuple[N, ...]) -> tuple[N, ...]:
    repeated = [name for name, n in Counter(item.name for item in value).items() if n > 1]
    if repeated:
        raise rule_error(f"must not repeat a name, got {repeated[0]!r} twice; remove one")
    return value


def check_column(value: str) -> str:
    # Tables written by Lastmile have the identity of a row in _lastmile_row_id.
    if value.startswith("_lastmile_") and value != "_lastmile_row_id":
        raise rule_error(
            f"must not start with '_lastmile_', which is Lastmile's own, got {value!r}; rename it"
        )
    return value


def check_script(value: str) -> str:
    """Refuse a script outside of the folders that a run finds it in."""
    if ".." in value.split("/"):
        raise rule_error(
            f"must not contain '..', got {value!r}; put the script beside the manifest or in "
            "code.workingDir, or give its path in the image in full"
        )
    return value


Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STRING_CHARS)]
Expression = Annotated[
    str, StringConstraints(max_length=MAX_EXPRESSION_CHARS), AfterValidator(check_expression)
]
Uri = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_STRING_CHARS), AfterValidator(check_uri)
]
StoreUri = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_STRING_CHARS),
    AfterValidator(check_store_uri),
]
TableUri = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_STRING_CHARS),
    AfterValidator(check_table_uri),
]
Column = Annotated[
    str, StringConstraints(min_length=1, max_length=256), AfterValidator(check_column)
]
Columns = Annotated[
    tuple[Column, ...], Field(min_length=1, max_length=MAX_COLUMNS), AfterValidator(check_unique)
]
# "package.module:function", as entry points are written (packaging.python.org, entry points).
# Both pydantic (Rust) and, for the CRD, the API server (RE2) read the patterns. They differ in \w,
# \s and \S, which match Unicode in pydantic and ASCII in RE2, so no pattern may contain these.
_NAME = r"[A-Za-z_][\p{L}\p{M}\p{N}\p{Pc}]*"
IMPORT_PATH_PATTERN = rf"^{_NAME}(\.{_NAME})*:{_NAME}(\.{_NAME})*$"
ImportPath = Annotated[str, StringConstraints(max_length=512, pattern=IMPORT_PATH_PATTERN)]
# A Python file: relative to the manifest or code.workingDir, or with its full path in the image.
SCRIPT_PATTERN = r"^[^\x00-\x1f\x7f]*[^/\x00-\x1f\x7f]\.py$"
Script = Annotated[
    str,
    StringConstraints(max_length=MAX_STRING_CHARS, pattern=SCRIPT_PATTERN),
    AfterValidator(check_script),
]
Percent = Annotated[int, Field(ge=0, le=100)]
# RFC 1123 label, as Kubernetes names containers.
LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
Label = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=LABEL_PATTERN)]
PositiveInt = Annotated[int, Field(ge=1, le=MAX_INT32)]
Count = Annotated[int, Field(ge=0, le=MAX_INT32)]
Seed = Annotated[int, Field(ge=0, le=MAX_INT32)]
