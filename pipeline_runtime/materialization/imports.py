"""Describes the code that a `map` function runs: the user's modules, and versions of packages.

Modules are found by the `import` statements in the source of the user's modules, transitively, and
without importing anything. A module that is imported by a name made at run time is not found.
Packages from an index count by their version, as do the packages that they require.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path

_DIGEST_CHARS = 16  # of a SHA-256, as of the run's hash
# Its semantics have a version of their own, see `recipe`.
_OWN_PACKAGE = "pipeline_runtime"
_INSTALLED = {"site-packages", "dist-packages"}
_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)([^;]*)(;.*)?$")
MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedCode:
    """The code behind functions.

    Attributes:
        modules: the user's modules by name, with the digest of their file, or `missing`.
        packages: installed packages by name, with their version.
    """

    modules: dict[str, str]
    packages: dict[str, str]


def describe_imports(modules: Iterable[str]) -> ImportedCode:
    """Return the code that these modules import, themselves included."""
    own: dict[str, str] = {}
    installed: set[str] = set()
    pending = list(modules)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen or _is_ours(name):
            continue
        seen.add(name)
        pending += _list_parents(name)
        spec = _find_spec(name)
        if spec is None:
            if name.partition(".")[0] not in installed:
                own[name] = MISSING
        elif not spec.has_location or spec.origin is None:
            continue  # built in, or a namespace without a file
        elif _INSTALLED.intersection(Path(spec.origin).parts):
            installed.add(name.partition(".")[0])
        else:
            content = Path(spec.origin).read_bytes()
            own[name] = hashlib.sha256(content).hexdigest()[:_DIGEST_CHARS]
            pending += _find_imports(content, spec)
    return ImportedCode(
        modules=dict(sorted(own.items())), packages=dict(sorted(_list_packages(installed)))
    )


def _is_ours(name: str) -> bool:
    top = name.partition(".")[0]
    return top == _OWN_PACKAGE or top in sys.stdlib_module_names


def _list_parents(name: str) -> Iterator[str]:
    """Yield the package of a module, whose code runs first."""
    package = name.rpartition(".")[0]
    if package:
        yield package


def _find_spec(name: str) -> ModuleSpec | None:
    """Find a module without importing it; None if there is none."""
    loaded = getattr(sys.modules.get(name), "__spec__", None)
    if isinstance(loaded, ModuleSpec):
        return loaded
    package = name.rpartition(".")[0]
    if not package:
        return PathFinder.find_spec(name)
    parent = _find_spec(package)
    if parent is None or parent.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(name, list(parent.submodule_search_locations))


def _find_imports(content: bytes, spec: ModuleSpec) -> Iterator[str]:
    """Yield the modules that a module's source imports, in functions too."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # compiled code, whose digest is all that is known
        return
    package = spec.name if spec.submodule_search_locations is not None else spec.parent
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            base = resolve_name(name, package) if node.level else name
            yield base
            # A name may be a module, or a value in the package.
            members = (f"{base}.{alias.name}" for alias in node.names)
            yield from (member for member in members if _find_spec(member) is not None)


def _list_packages(top_levels: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield name and version of the packages that have these modules, and of what they require."""
    pending = [name for top in top_levels for name in _find_providers(top)]
    seen: set[str] = set()
    while pending:
        name = _normalize(pending.pop())
        found = None if name in seen else _find_package(name)
        seen.add(name)
        if found is not None:
            yield name, found.version
            pending += _list_required(found.requires or ())


def _find_providers(top_level: str) -> list[str]:
    """Return the packages that have a module. Usually, that is the one of the same name."""
    if _find_package(top_level) is not None:
        return [top_level]
    return _list_providers().get(top_level, [])


def _find_package(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


@cache
def _list_providers() -> dict[str, list[str]]:
    """Return the packages by module; this reads the list of files of every installed package."""
    return {top: list(names) for top, names in metadata.packages_distributions().items()}


def _list_required(requirements: Iterable[str]) -> Iterator[str]:
    for text in requirements:
        match = _REQUIREMENT.match(text)
        if match and "extra" not in (match[3] or ""):
            yield match[1]


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
