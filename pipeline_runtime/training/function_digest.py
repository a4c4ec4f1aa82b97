"""Digests a function of a notebook: its source, and the values and code of the notebook it uses.

`entrypoint` names a function by this digest, so that another learning rate in another cell is
another run. The same cells have the same digest in another process, which pickles do not promise.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import enum
import hashlib
import inspect
import textwrap
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

_DIGEST_CHARS = 16  # of a SHA-256, as of the run's hash
# Deeper values count by their type alone, as do values that contain themselves.
_MAX_DEPTH = 20
_PLAIN = (bool, int, float, complex, str, bytes, type(None), PurePath, range)
_BEGINNINGS = ("__init__", "__post_init__")  # methods whose assignments are settings
# Methods that change a list, a set or a dict: a global that a function changes is no setting.
_CHANGING = {
    *("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse"),
    *("add", "discard", "update", "setdefault", "popitem", "appendleft", "extendleft", "popleft"),
}


def digest_function(function: FunctionType) -> str:
    """Return the digest of a function: 16 hexadecimal digits.

    It covers the function's source and defaults, and the globals that it reads:
    - numbers, texts, paths, enums, and lists, tuples, sets, dicts, dataclasses and namespaces of
      these, unless the function changes them;
    - functions and classes of its own module by the same, and others by their name;
    - the attributes of instances of its own module's classes, unless a method changes them.

    Other values count by their type alone.
    """
    text = "\n".join(_Describer(_find_module(function)).describe_all(function))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGEST_CHARS]


def read_source(function: FunctionType) -> str:
    """Return the source of a function as if it stood at the left margin.

    Raises OSError or TypeError if it has none.
    """
    return textwrap.dedent(inspect.getsource(function.__code__))


class _Describer:
    """Describes a function of a module, and all of the module that it uses."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._known: dict[int, FunctionType | type] = {}  # by id
        self._pending: list[FunctionType | type] = []
        self._globals: dict[str, object] = {}  # that the functions read
        self._changed: set[str] = set()  # globals that they change
        self._open: set[int] = set()  # ids of the containers around the described value

    def describe_all(self, function: FunctionType) -> Iterator[str]:
        """Yield lines about the function, the code that it uses, and its globals."""
        self._refer_to(function)
        yield from self._describe_pending()
        described: set[str] = set()
        while names := self._globals.keys() - self._changed - described:
            for name in sorted(names):
                yield f"{name} = {self._describe(self._globals[name])}"
            described |= names
            yield from self._describe_pending()

    def _describe_pending(self) -> Iterator[str]:
        while self._pending:
            value = self._pending.pop(0)
            if isinstance(value, type):
                yield from self._describe_class(value)
            else:
                yield from self._describe_function(value)

    def _describe_function(self, function: FunctionType) -> Iterator[str]:
        yield f"function {function.__qualname__}"
        try:
            source = read_source(function)
        except (OSError, TypeError):  # such as the `__init__` that a dataclass generates
            source = ""
        yield source
        changed = _find_changed(source)
        yield from self._describe_all(_list_defaults(function), changed)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        with suppress(ValueError):  # an empty cell
            yield from self._describe_all(((n, cell.cell_contents) for n, cell in cells), changed)
        read, assigned = _find_globals(function.__code__)
        self._changed |= assigned | changed & read  # others are the function's own variables
        for name in sorted(read & function.__globals__.keys()):
            if not name.startswith("__"):
                self._globals[name] = value = function.__globals__[name]
                if isinstance(value, FunctionType | type):
                    self._describe(value)  # they may change globals too

    def _describe_all(
        self, values: Iterable[tuple[str, object]], without: set[str]
    ) -> Iterator[str]:
        yield from (
            f"{name} = {self._describe(value)}" for name, value in values if name not in without
        )

    def _describe_class(self, kind: type) -> Iterator[str]:
        """Yield lines about a class by its members, since Python finds no source in a notebook."""
        yield f"class {kind.__qualname__}"
        yield self._describe(kind.__bases__)
        for name, member in sorted(vars(kind).items()):
            for part in _unwrap(member):
                is_code = isinstance(part, FunctionType)
                is_setting = not name.startswith("__") and kind.__name__ not in self._changed
                if is_code or is_setting:
                    yield f"{name} = {self._describe(part)}"

    def _refer_to(self, value: FunctionType | type) -> str:
        """Return the name of a function or class of the module, which is described once."""
        if id(value) not in self._known:
            self._known[id(value)] = value
            self._pending.append(value)
        return value.__qualname__

    def _describe(self, value: object, depth: int = 0) -> str:
        if depth > _MAX_DEPTH or id(value) in self._open:
            return _name(value)
        again = partial(self._describe, depth=depth + 1)
        if isinstance(value, enum.Enum):
            return f"{_name(value)}.{value.name}({again(value.value)})"
        for plain in _PLAIN:  # not by the repr of a subclass, which may have an address in it
            if isinstance(value, plain):
                return str(plain.__repr__(value))  # type: ignore[call-arg]
        if isinstance(value, FunctionType | type) and _find_module(value) == self._module:
            return self._refer_to(value)
        if callable(value) and (wrapped := _read(value, "__wrapped__")):  # a library's decorator
            return f"{type(value).__qualname__}({again(wrapped)})"
        if isinstance(value, MethodType):
            return again((value.__func__, value.__self__))
        if isinstance(value, partial):
            return again((value.func, value.args, value.keywords))
        parts = _find_parts(value)
        if parts is None and not isinstance(value, type) and type(value).__module__ == self._module:
            self._refer_to(type(value))
            without = _find_changed_attributes(type(value))
            parts = [(n, each) for n, each in _list_attributes(value) if n not in without]
        if parts is None:
            return _name(value)
        self._open.add(id(value))
        described = [again(part) for part in parts]
        self._open.discard(id(value))
        if isinstance(value, set | frozenset | dict):
            described.sort()
        return f"{_name(value)}({', '.join(described)})"


def _find_module(value: FunctionType | type) -> str:
    """Return the name of the module whose code a function or class is.

    A decorator such as `torch.no_grad()` gives its own function the `__module__` of the user's.
    """
    if isinstance(value, FunctionType):
        return str(value.__globals__.get("__name__"))
    return value.__module__


def _find_parts(value: object) -> list[Any] | None:
    """Return the parts of a container; None if a value is none."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    if isinstance(value, SimpleNamespace | Namespace):
        return list(vars(value).items())
    if isinstance(value, dict):
        return list(value.items())
    return list(value) if isinstance(value, list | tuple | set | frozenset) else None


def _list_attributes(value: object) -> list[tuple[str, Any]]:
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    return [
        *getattr(value, "__dict__", {}).items(),
        *((name, _read(value, name)) for name in slots),
    ]


def _find_changed_attributes(kind: type) -> set[str]:
    """Return the attributes that methods change in place, other than those that begin an object."""
    changed = set[str]()
    for each in kind.__mro__[:-1]:
        for name, member in vars(each).items():
            for part in _unwrap(member) if name not in _BEGINNINGS else ():
                if isinstance(part, FunctionType) and part.__code__.co_argcount:
                    with suppress(OSError, TypeError, SyntaxError):
                        owner = part.__code__.co_varnames[0]  # self
                        changed |= _find_attributes(ast.parse(read_source(part)), owner)
    return changed


def _find_attributes(tree: ast.AST, owner: str) -> set[str]:
    """Return the attributes of a name that are changed, as in `self.losses.append(loss)`."""
    return {
        path[1]
        for path in map(_find_path, _list_changes(tree))
        if len(path) > 1 and path[0] == owner
    }


def _list_defaults(function: FunctionType) -> list[tuple[str, Any]]:
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return [*zip(names, defaults, strict=True), *(function.__kwdefaults__ or {}).items()]


def _read(value: object, name: str) -> Any:
    """Return an attribute; None if there is none, or a proxy raises any other error."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - code of the user's or of a library
        return None


def _name(value: object) -> str:
    """Return the type of a value, with the name of a module, function or class."""
    is_named = callable(value) or isinstance(value, ModuleType)
    module, name = _read(value, "__module__"), _read(value, "__qualname__")
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return f"{kind} {module} {name or _read(value, '__name__')}" if is_named else kind


def _unwrap(member: object) -> list[object]:
    if isinstance(member, property):
        return [each for each in (member.fget, member.fset, member.fdel) if each is not None]
    return [member.__func__ if isinstance(member, staticmethod | classmethod) else member]


def _find_globals(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the globals that code reads, and those that it assigns, inner functions included."""
    read, assigned = set[str](), set[str]()
    for each in dis.get_instructions(code):
        if each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            assigned.add(each.argval)
        # LOAD_NAME is in the body of an inner class.
        elif each.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            read.add(each.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more_read, more_assigned = _find_globals(inner)
            read, assigned = read | more_read, assigned | more_assigned
    return read, assigned


def _find_changed(source: str) -> set[str]:
    """Return the names whose values source changes in place, as in `losses.append(loss)`."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a lambda in the middle of a statement
        return set()
    return {path[0] for path in map(_find_path, _list_changes(tree)) if path}


def _list_changes(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions whose values are changed: `history["loss"]` of an append to it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Subscript):
            continue
        is_call = isinstance(node, ast.Attribute) and node.attr in _CHANGING
        if is_call or (isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)):
            yield node.value
        elif not isinstance(node.ctx, ast.Load):
            yield node


def _find_path(node: ast.expr) -> list[str]:
    """Return the names of `a.b["c"].d`: a, b and d; empty if it does not begin with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []
