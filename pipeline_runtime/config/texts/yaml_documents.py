"""YAML text becomes JSON values with the line and column of every field.

Only what JSON can say comes out: no dates (`2026-01-01` stays a string), no tags, no repeated or
non-string keys, no values that grow without bound through anchors. Numbers and booleans are read as
kubectl reads them (YAML 1.1), so that a file means the same on a laptop and on a cluster; where
that surprises, there is a warning. `manifest` runs after this and knows what a document means.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml
from pydantic import JsonValue
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pipeline_runtime.errors import Problem

# etcd refuses objects above 1.5 MiB; nothing that fits there is refused here.
MAX_MANIFEST_BYTES = 1 << 20
# A spec with every list full has about 20,000 values; anchors may not unfold to more than this.
MAX_VALUES = 100_000
MAX_DEPTH = 64
TOO_DEEP = f"must not be nested deeper than {MAX_DEPTH} levels; flatten it"
SHOWN_DEPTH = 3  # so many parts of the path to what is nested too deep are told
# Of a part of a path: a column's name has as many at most.
_MAX_PART_CHARS = 256

PathPart = str | int
Path = tuple[PathPart, ...]
Place = tuple[int, int]  # line and column, from 1

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAG = "?"  # what stood without quotes or tag; its meaning is found by `resolve_scalar`
_SCALAR_TAGS = (_PLAIN_TAG, _TAG + "str")
_TRUE = ("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON")
_FALSE = ("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF")
_NULL = ("", "~", "null", "Null", "NULL")
# kubectl reads these as booleans where most people mean a text.
_SURPRISING = frozenset(_TRUE[3:] + _FALSE[3:] + ("y", "Y", "n", "N"))
_INT = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# int() of a longer text is slow, and Python refuses it above 4,300 digits.
_MAX_NUMBER_CHARS = 400


class Loader(yaml.SafeLoader):
    """PyYAML's composer without implicit types, and with a bound on depth."""

    _depth = 0

    def resolve(self, kind: type[Node], value: str | None, implicit: object) -> str:
        if kind is ScalarNode:
            plain = isinstance(implicit, tuple) and bool(implicit[0])
            return _PLAIN_TAG if plain else _TAG + "str"
        return _TAG + ("seq" if kind is SequenceNode else "map")

    def compose_node(self, parent: Node | None, index: object) -> Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="too deep", problem_mark=mark)
        try:
            node: Node | None = super().compose_node(parent, index)  # type: ignore[arg-type]
            return node
        finally:
            self._depth -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One YAML document: its JSON value, and where each field stands."""

    value: JsonValue
    places: dict[Path, Place]
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]

    def place_of(self, path: Path) -> Place | tuple[None, None]:
        """Return line and column of a field, or of the nearest part of its path that exists."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return None, None


def format_path(path: Path) -> str:
    """The path as messages write it: `spec.pipeline[2].filter`."""
    text = ""
    for part in path:
        words = f"[{part}]" if isinstance(part, int) else show_key(part)
        text += f".{words}" if text and isinstance(part, str) else words
    return text


def show_key(key: str) -> str:
    """A key in one line of a terminal: without control characters, and not without end."""
    if len(key) > _MAX_PART_CHARS:
        key = key[: _MAX_PART_CHARS - 1] + "…"
    return key if key.isprintable() else key.encode("unicode_escape").decode()


def read_documents(text: str, file: str = "") -> Iterator[Document]:
    """Yield the documents of a YAML text; one that cannot be parsed has problems, and is the last.

    Args:
        text: the YAML, at most 1 MiB of it.
        file: its name, for messages.
    """
    if len(text.encode(errors="replace")) > MAX_MANIFEST_BYTES:
        message = f"must be at most {MAX_MANIFEST_BYTES:,} bytes, got {len(text):,} characters"
        yield _broken(Problem(path="", message=message, file=file))
        return
    nodes = _compose(text)
    while True:
        try:
            node = next(nodes, None)
        except yaml.YAMLError as error:
            yield _broken(_yaml_problem(error, text, file))
            return
        if node is None:
            return
        yield _Converter(file=file).convert(node)


def read_value(text: str) -> JsonValue:
    """The value of a text as a scalar or JSON, such as the right side of `--set path=value`.

    Raises:
        ValueError: brackets or quotes do not match, or the value is none that JSON can say.
    """
    if not text.startswith(("[", "{", "'", '"')):
        return resolve_scalar(text)
    documents = list(read_documents(text))
    problems = [problem for document in documents for problem in document.problems]
    if not problems:
        return documents[0].value
    if text[0] in "'\"":  # 'US' = country is an expression, and its quotes are its own
        return text
    raise ValueError(problems[0].message)


def resolve_scalar(text: str) -> JsonValue:
    """Parse a plain scalar: null, a boolean, a number, or else the text itself.

    Raises:
        ValueError: it is infinite or no number, which JSON cannot say.
    """
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"must be a finite number, got {text}; quote it if it is a text")
    if len(text) > _MAX_NUMBER_CHARS:
        return text
    if _INT.fullmatch(text):
        return _parse_int(text)
    if _FLOAT.fullmatch(text):
        return _parse_float(text)
    return text


def _parse_int(text: str) -> JsonValue:
    digits = text.replace("_", "")
    octal = re.fullmatch(r"([-+]?)0([0-7]+)", digits)
    try:
        return int(f"{octal[1]}0o{octal[2]}" if octal else digits, 0)
    except ValueError:  # 0x_ and the like
        return text


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"must be a finite number, got {text}; quote it if it is a text")
    return value


def _compose(text: str) -> Iterator[Node]:
    loader = Loader(text)
    try:
        while loader.check_node():
            if node := loader.get_node():
                yield node
    finally:
        loader.dispose()


def _broken(problem: Problem) -> Document:
    return Document(value=None, places={}, problems=(problem,), warnings=())


@dataclass(slots=True, kw_only=True)
class _Converter:
    """Turns one document's nodes into JSON values; keeps places, problems and warnings."""

    file: str
    places: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    open_nodes: set[int] = field(default_factory=set)
    num_values: int = 0

    def convert(self, node: Node) -> Document:
        self.places[()] = _place(node)
        value = self._value(node, ())
        return Document(
            value=value,
            places=self.places,
            problems=tuple(self.problems),
            warnings=tuple(self.warnings),
        )

    def _value(self, node: Node, path: Path) -> JsonValue:
        self.num_values += 1
        if self.num_values == MAX_VALUES:
            self._refuse(
                node, path, f"must not unfold to more than {MAX_VALUES:,} values; use fewer aliases"
            )
        if self.num_values >= MAX_VALUES:
            return None
        if id(node) in self.open_nodes:
            self._refuse(node, path, "must not contain itself, got an alias to what it is part of")
            return None
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if len(path) > MAX_DEPTH:  # aliases nest what the composer saw flat
            self._refuse(node, path[:SHOWN_DEPTH], TOO_DEEP)
            return None
        self.open_nodes.add(id(node))
        try:
            return self._collection(node, path)
        finally:
            self.open_nodes.discard(id(node))

    def _collection(self, node: Node, path: Path) -> JsonValue:
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            for index, item in enumerate(node.value):
                self.places[(*path, index)] = _place(item)
            return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]
        if isinstance(node, MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        self._refuse_tag(node, path)
        return None

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, JsonValue]:
        merged: dict[str, JsonValue] = {}
        own: dict[str, JsonValue] = {}
        for key_node, value_node in node.value:
            if _is_merge(key_node):
                merged = self._merge(value_node, path) | merged
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            below = (*path, key)
            if key in own:
                line, column = self.places[below]
                first = f"line {line}, column {column}"
                self._refuse(key_node, below, f"must not be repeated, first in {first}; remove one")
                continue
            self.places[below] = _place(key_node)
            own[key] = self._value(value_node, below)
        return merged | own

    def _merge(self, node: Node, path: Path) -> dict[str, JsonValue]:
        merged: dict[str, JsonValue] = {}
        for source in node.value if isinstance(node, SequenceNode) else [node]:
            value = self._value(source, path) if isinstance(source, MappingNode) else None
            if isinstance(value, dict):
                merged = value | merged
            else:
                self._refuse(source, path, "must merge a mapping by '<<', got something else")
        return merged

    def _key(self, node: Node, path: Path) -> str | None:
        if not isinstance(node, ScalarNode) or node.tag not in _SCALAR_TAGS:
            self._refuse(node, path, "must have texts as keys, got a list, a mapping or a tag")
            return None
        if node.tag == _PLAIN_TAG and node.value in _SURPRISING:
            self._warn(node, (*path, node.value))
        elif node.tag == _PLAIN_TAG and not self._is_text(node.value):
            got = node.value[:40] or "none"
            self._refuse(node, path, f"must have texts as keys, got {got}; quote it")
            return None
        return self._text(node, path)

    def _is_text(self, text: str) -> bool:
        try:
            return isinstance(resolve_scalar(text), str)
        except ValueError:
            return False

    def _scalar(self, node: ScalarNode, path: Path) -> JsonValue:
        text = self._text(node, path)
        if node.tag not in _SCALAR_TAGS:
            self._refuse_tag(node, path)
            return None
        if node.tag != _PLAIN_TAG or text is None:
            return text
        if text in _SURPRISING:
            self._warn(node, path)
        try:
            return resolve_scalar(text)
        except ValueError as error:
            self._refuse(node, path, str(error))
            return None

    def _text(self, node: ScalarNode, path: Path) -> str | None:
        try:
            # JSON writes what is beyond U+FFFF as two escapes, which YAML leaves as two halves.
            return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._refuse(node, path, "must be Unicode text, got half a surrogate pair; remove it")
            return None

    def _refuse_tag(self, node: Node, path: Path) -> None:
        tag = str(node.tag).replace(_TAG, "!!")[:60]
        self._refuse(node, path, f"must be plain YAML, got the tag {tag}; remove it")

    def _refuse(self, node: Node, path: Path, message: str) -> None:
        line, column = _place(node)
        self.problems.append(
            Problem(
                path=format_path(path), message=message, file=self.file, line=line, column=column
            )
        )

    def _warn(self, node: ScalarNode, path: Path) -> None:
        line, column = _place(node)
        message = f"kubectl reads {node.value} without quotes as a boolean; quote it"
        self.warnings.append(
            Problem(
                path=format_path(path), message=message, file=self.file, line=line, column=column
            )
        )


def _is_merge(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == _PLAIN_TAG and node.value == "<<"


def _place(node: Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _yaml_problem(error: yaml.YAMLError, text: str, file: str) -> Problem:
    """The parser's complaint with its place, in our words where we have better ones."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        column = error.position - (text.rfind("\n", 0, error.position) + 1) + 1
        message = f"must be printable text, got the character {_code(error)}; remove it"
        return Problem(path="", message=message, file=file, line=line, column=column)
    message = _yaml_message(error)
    marks = [getattr(error, "problem_mark", None), getattr(error, "context_mark", None)]
    if message.endswith("close it"):
        marks.reverse()  # where it was opened says more than where the text ended
    mark = marks[0] or marks[1]
    if mark is None:
        return Problem(path="", message=message, file=file)
    return Problem(path="", message=message, file=file, line=mark.line + 1, column=mark.column + 1)


def _code(error: yaml.reader.ReaderError) -> str:
    return f"U+{error.character:04X}" if isinstance(error.character, int) else "U+FFFD"


_YAML_WORDS = {
    "too deep": TOO_DEEP,
    r"cannot start any token": "must be indented with spaces, got a tab; replace it by spaces",
    "mapping values are not allowed here": "must be YAML, got ':' where no key can stand; check "
    "the indentation, or quote the text that holds it",
    "found undefined alias": "must be YAML, got an alias (*name) without its anchor (&name); "
    "quote the text if none is meant",
    "could not find expected ':'": "must be YAML, got a line that is neither 'key: value' nor "
    "'- item'; check the line above it too",
    "expected <block end>": "must be YAML, got something at an indentation that fits nothing "
    "above; align it",
    "found unexpected end of stream": "must be YAML, got a quote that is never closed; close it",
    "but found '<stream end>'": "must be YAML, got the end of the text where a value should stand; "
    "complete it",
    "expected ',' or": "must be YAML, got a bracket or brace that is not closed; close it",
}


def _yaml_message(error: yaml.YAMLError) -> str:
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    if "cannot start any token" in problem and "'\\t'" not in problem:
        char = problem.split("'")[1]
        return f"must be YAML, got {char!r} at the start of a value; quote the text"
    for known, words in _YAML_WORDS.items():
        if known in problem:
            return words
    return f"must be YAML, got an error: {problem}"
