"""Manifest files become experiments; what is wrong with them is reported all at once.

A manifest is YAML (or JSON), may hold several documents, and may hold other kinds beside its
experiments (a ConfigMap, say), which are passed over. But every file that is named, and every
directory as a whole, must hold at least one DatasetExperiment, and a `kind` that nearly is ours
counts as ours, so that a typo is not passed over in silence.
A `kind: List`, as `kubectl get -o yaml` prints it, is taken apart.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

from pydantic import JsonValue

from pipeline_runtime.config.documents import (
    MAX_MANIFEST_BYTES,
    Document,
    Path,
    format_path,
    read_documents,
)
from pipeline_runtime.config.experiment import API_VERSION, GROUP, KIND, DatasetExperiment
from pipeline_runtime.config.overrides import OVERRIDE_FILE, apply_overrides, overridden_paths
from pipeline_runtime.config.parsing import judge
from pipeline_runtime.config.problems import Found, find_similar, resolve_path
from pipeline_runtime.errors import ManifestError, Problem

STDIN = "-"
SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedManifest:
    """One experiment and where it was read."""

    file: str
    document_index: int  # among the documents of the file, from 0
    experiment: DatasetExperiment
    document: dict[str, JsonValue]  # as read, overrides applied
    text: str  # of the whole file
    places: _Places
    warnings: tuple[Problem, ...] = ()

    def place(self, problem: Problem) -> Problem:
        """The problem with file, line and column of its field; one found after reading has none.

        What an override gave stands under --set instead.
        """
        if problem.file:
            return problem
        path = resolve_path(self.document, (), problem.path)
        return self.places.place(path, problem.message, self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """One object of a document: the document itself, or an item of a List."""

    document: Document
    index: int
    prefix: Path
    value: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Where the fields of one experiment stand."""

    candidate: _Candidate
    overridden: tuple[Path, ...]

    def place(self, path: Path, message: str, file: str) -> Problem:
        whole = (*self.candidate.prefix, *path)
        problem = Problem(path=format_path(whole), message=message, file=file)
        if any(path[: len(touched)] == touched for touched in self.overridden):
            return replace(problem, file=OVERRIDE_FILE)
        line, column = self.candidate.document.place_of(whole)
        return replace(problem, line=line, column=column)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A text, where it comes from, and how its experiments are read."""

    text: str
    file: str
    overrides: Sequence[str]
    bounds_size: bool


@dataclass(slots=True, kw_only=True)
class _Findings:
    """What reading a file gave."""

    loaded: list[LoadedManifest]
    problems: list[Problem]
    other_kinds: list[str]


def load_manifests(
    paths: str | FilePath | Iterable[str | FilePath],
    *,
    overrides: Sequence[str] = (),
    bounds_size: bool = True,
) -> list[LoadedManifest]:
    """Read the experiments of files and directories.

    Args:
        paths: files, directories (searched for *.yaml and *.yml, hidden ones left out), or `-` for
            standard input.
        overrides: `path=value` each, applied to every experiment before it is checked.
        bounds_size: see `parsing.judge`.

    Raises:
        ManifestError: with every problem of every file, in the order of the files.
    """
    chosen = [paths] if isinstance(paths, str | FilePath) else list(paths)
    if not chosen:
        raise ManifestError([Problem(path="", message="must name a file or a directory, got none")])
    loaded: list[LoadedManifest] = []
    problems: list[Problem] = []
    for path in chosen:
        findings = _load_path(str(path), overrides, bounds_size=bounds_size)
        loaded += findings.loaded
        problems += findings.problems
    if problems:
        raise ManifestError(problems)
    return loaded


def parse_manifests(
    text: str, *, file: str = "<text>", overrides: Sequence[str] = ()
) -> list[LoadedManifest]:
    """Read the experiments of a YAML text; `file` is its name in messages.

    Raises:
        ManifestError: with every problem, in the text's order.
    """
    findings = _read(text, file, overrides)
    _require_one(findings, file)
    if findings.problems:
        raise ManifestError(findings.problems)
    return findings.loaded


def _load_path(path: str, overrides: Sequence[str], *, bounds_size: bool) -> _Findings:
    findings = _Findings(loaded=[], problems=[], other_kinds=[])
    is_directory = path != STDIN and FilePath(path).is_dir()
    for file in _files_in(FilePath(path)) if is_directory else [path]:
        try:
            found = _read(_read_text(file), file, overrides, bounds_size=bounds_size)
        except ValueError as error:
            findings.problems.append(Problem(path="", message=str(error), file=file))
            continue
        findings.loaded += found.loaded
        findings.problems += found.problems
        findings.other_kinds += found.other_kinds
    _require_one(findings, path)
    return findings


def _files_in(directory: FilePath) -> Iterator[str]:
    for path in sorted(directory.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(directory).parts)
        if path.suffix in SUFFIXES and path.is_file() and not hidden:
            yield str(path)


def _read_text(file: str) -> str:
    """The text of a file; one byte more than allowed is read, so that the bound can be judged."""
    try:
        if file == STDIN:
            data = sys.stdin.buffer.read(MAX_MANIFEST_BYTES + 1)
        else:
            with open(file, "rb") as stream:
                data = stream.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise ValueError(
            f"must be a readable file, got {error.strerror}; check the path"
        ) from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(
            f"must be at most {MAX_MANIFEST_BYTES:,} bytes, got more; is it a manifest?"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"must be UTF-8 text, got byte 0x{data[error.start]:02x} at {error.start}; convert it"
        ) from error


def _read(text: str, file: str, overrides: Sequence[str], *, bounds_size: bool = True) -> _Findings:
    findings = _Findings(loaded=[], problems=[], other_kinds=[])
    for index, document in enumerate(read_documents(text, file)):
        if document.problems:
            findings.problems += document.problems
            if document.value is None:
                continue
        for candidate in _candidates(document, index):
            if (other := _other_kind(candidate.value)) is not None:
                findings.other_kinds.append(other)
                continue
            source = _Source(text=text, file=file, overrides=overrides, bounds_size=bounds_size)
            _judge(candidate, findings, source)
    return findings


def _candidates(document: Document, index: int) -> Iterator[_Candidate]:
    value = document.value
    if value is None:  # an empty document, such as after a last ---
        return
    items = value.get("items") if isinstance(value, dict) and value.get("kind") == "List" else None
    if not isinstance(items, list):
        yield _Candidate(document=document, index=index, prefix=(), value=value)
        return
    for position, item in enumerate(items):
        yield _Candidate(document=document, index=index, prefix=("items", position), value=item)


def _other_kind(value: JsonValue) -> str | None:
    """The kind of an object that is not ours to judge, None if it is, or was meant to be."""
    if not isinstance(value, dict):
        return None
    kind, version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        return None
    ours = kind == KIND or version.startswith(f"{GROUP}/") or find_similar(kind, [KIND])
    return None if ours else kind


def _judge(candidate: _Candidate, findings: _Findings, source: _Source) -> None:
    value, overrides, file = candidate.value, source.overrides, source.file
    try:
        value = apply_overrides(value, overrides) if overrides else value
        overridden = overridden_paths(overrides)
    except ManifestError as error:
        findings.problems += [p for p in error.problems if p not in findings.problems]
        overridden = []
    places = _Places(candidate=candidate, overridden=tuple(overridden))
    verdict = judge(value, bounds_size=source.bounds_size)
    if verdict.experiment is None:
        findings.problems += _place_problems(verdict.found, places, file)
    elif isinstance(value, dict):
        findings.loaded.append(
            LoadedManifest(
                file=file,
                document_index=candidate.index,
                experiment=verdict.experiment,
                document=value,
                text=source.text,
                places=places,
                warnings=candidate.document.warnings,
            )
        )


def _place_problems(found: Sequence[Found], places: _Places, file: str) -> list[Problem]:
    """Add file, line and column, in the file's order."""
    prefix = places.candidate.prefix
    broken = [problem.path for problem in places.candidate.document.problems]
    problems = [
        places.place(path, message, file)
        for path, message in found
        # What the YAML did not give is no second mistake.
        if not any(_is_related(format_path((*prefix, *path)), other) for other in broken)
    ]
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))


def _is_related(path: str, other: str) -> bool:
    short, long = sorted((path, other), key=len)
    return short == long or (short != "" and long.startswith((f"{short}.", f"{short}[")))


def _require_one(findings: _Findings, file: str) -> None:
    if findings.loaded or findings.problems:
        return
    got = (
        f"only {', '.join(dict.fromkeys(findings.other_kinds))}" if findings.other_kinds else "none"
    )
    message = f"must hold a {KIND} of {API_VERSION}, got {got}; add one"
    findings.problems.append(Problem(path="", message=message, file=file))
