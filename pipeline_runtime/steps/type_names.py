"""Parses the names of Arrow types as Arrow prints them, for `cast` and `map`.

Grammar, after `str(pa.DataType)`:
    simple        int64, float, double, string, date32[day], …
    unit          timestamp[us], timestamp[us, tz=UTC], time64[ns], duration[s]
    number        decimal128(10, 2), fixed_size_binary[16]
    nested        list<int64>, list<item: int64>, large_list<…>, fixed_size_list<…>[8],
                  struct<a: int64, b: string>, map<string, int64>,
                  dictionary<string>, dictionary<values=string, indices=int32, ordered=0>
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

import pyarrow as pa

_SIMPLE: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "halffloat": pa.float16(),
    "float32": pa.float32(),
    "float": pa.float32(),
    "float64": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "utf8": pa.string(),
    "large_string": pa.large_string(),
    "large_utf8": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32": pa.date32(),
    "date64": pa.date64(),
    # Aliases in the words of SQL and pandas whose width is not in doubt.
    "bigint": pa.int64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
}
_NESTED = ("list", "large_list", "fixed_size_list", "struct", "map", "dictionary")
_PARAMETRIC = ("timestamp", "time32", "time64", "duration", "decimal128", "decimal256")
_TOKEN = re.compile(r"\s*([A-Za-z_0-9+\-/]+|[<>\[\](),:=]|$)")


class TypeNameError(ValueError):
    """The name of a type that Arrow does not have; the message has the wrong part."""


def parse_type(text: str) -> pa.DataType:
    """Return the Arrow type of that name. Raises `TypeNameError` if there is none."""
    parser = _Parser(text)
    try:
        data_type = parser.parse_type()
    except TypeNameError:
        raise
    except (TypeError, ValueError) as error:  # pyarrow's own: an unknown unit, a precision of 99
        raise TypeNameError(f"{text!r}: {error}") from error
    if parser.peek():
        raise TypeNameError(f"{text!r}: must end after the type, got {parser.peek()!r}")
    return data_type


class _Parser:
    """Recursive descent over the tokens of one name."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._place = 0

    def _split(self, text: str) -> list[str]:
        tokens, place = [], 0
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                raise TypeNameError(f"{text!r}: must be a type, got {text[place]!r} in it")
            tokens.append(match[1])
            place = match.end()
        return [token for token in tokens if token]

    def peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if expected and token != expected:
            got = repr(token) if token else "its end"
            raise TypeNameError(f"{self._text!r}: must have {expected!r}, got {got}")
        self._place += 1
        return token

    def take_if(self, token: str) -> bool:
        found = self.peek() == token
        self._place += found
        return found

    def number(self) -> int:
        token = self.take()
        try:
            return int(token)
        except ValueError:
            raise TypeNameError(f"{self._text!r}: must have a number, got {token!r}") from None

    def parse_type(self) -> pa.DataType:
        name = self.take()
        if name in _NESTED:
            return _NESTED_PARSERS[name](self)
        if self.peek() in ("[", "(") and name not in ("date32", "date64"):
            return self._parametric(name)
        data_type = _SIMPLE.get(name)
        if data_type is None:
            raise TypeNameError(self._unknown(name))
        if name.startswith("date") and self.take_if("["):  # date32[day], as Arrow prints it
            self.take()
            self.take("]")
        return data_type

    def _unknown(self, name: str) -> str:
        known = [*_SIMPLE, *_NESTED, *_PARAMETRIC]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "use a name such as int64 or list<int64>"
        whole = "" if name == self._text else f"{self._text!r}: "
        return f"{whole}must be an Arrow type, got {name!r}; {hint}"

    def _parametric(self, name: str) -> pa.DataType:
        if name in ("decimal128", "decimal256"):
            return self._decimal(name)
        if name in _SIMPLE and name != "timestamp":
            raise TypeNameError(f"{self._text!r}: must have nothing in brackets after {name!r}")
        self.take("[")
        if name == "fixed_size_binary":
            data_type = pa.binary(self.number())
        elif name == "timestamp":
            data_type = pa.timestamp(self.take(), self._time_zone())
        elif name in ("time32", "time64", "duration"):
            data_type = getattr(pa, name)(self.take())
        else:
            raise TypeNameError(self._unknown(name))
        self.take("]")
        return data_type

    def _decimal(self, name: str) -> pa.DataType:
        self.take("(")
        precision = self.number()
        scale = self.number() if self.take_if(",") else 0
        self.take(")")
        data_type: pa.DataType = getattr(pa, name)(precision, scale)
        return data_type

    def _time_zone(self) -> str | None:
        if not self.take_if(","):
            return None
        self.take("tz")
        self.take("=")
        zone = self.take()
        while self.peek() not in ("]", ""):  # "+01:00" is three tokens
            zone += self.take()
        return zone

    def list_item(self) -> pa.DataType:
        """The item's type; Arrow prints a name before it, which need not be there."""
        self.take("<")
        if self._place + 1 < len(self._tokens) and self._tokens[self._place + 1] == ":":
            self.take()
            self.take(":")
        item = self.parse_type()
        if self.peek() == "not":
            raise TypeNameError(f"{self._text!r}: must leave out 'not null', got it for the item")
        self.take(">")
        return item

    def fixed_size_list(self) -> pa.DataType:
        item = self.list_item()
        self.take("[")
        size = self.number()
        self.take("]")
        return pa.list_(item, size)

    def struct(self) -> pa.DataType:
        fields = []
        self.take("<")
        while not self.take_if(">"):
            name = self.take()
            self.take(":")
            fields.append(pa.field(name, self.parse_type()))
            if self.peek() != ">":
                self.take(",")
        return pa.struct(fields)

    def map(self) -> pa.DataType:
        self.take("<")
        key = self.parse_type()
        self.take(",")
        item = self.parse_type()
        self.take(">")
        return pa.map_(key, item)

    def dictionary(self) -> pa.DataType:
        """dictionary<string>, or with values=, indices=, ordered= as Arrow prints it."""
        options: dict[str, pa.DataType] = {"indices": pa.int32()}
        ordered = False
        self.take("<")
        while not self.take_if(">"):
            option = self.take() if self._has_option() else "values"
            self.take_if("=")
            if option == "ordered":
                ordered = self.number() != 0
            else:
                options[option] = self.parse_type()
            if self.peek() != ">":
                self.take(",")
        if "values" not in options:
            raise TypeNameError(f"{self._text!r}: must name the type of its values, got none")
        return pa.dictionary(options["indices"], options["values"], ordered)

    def _has_option(self) -> bool:
        return self.peek() in ("values", "indices", "ordered")


_NESTED_PARSERS: dict[str, Callable[[_Parser], pa.DataType]] = {
    "list": lambda parser: pa.list_(parser.list_item()),
    "large_list": lambda parser: pa.large_list(parser.list_item()),
    "fixed_size_list": _Parser.fixed_size_list,
    "struct": _Parser.struct,
    "map": _Parser.map,
    "dictionary": _Parser.dictionary,
}
