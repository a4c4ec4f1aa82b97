"""Reads experiments from manifest files, and reports all of their problems at once.

A manifest is YAML or JSON and may hold several documents. Objects of other kinds, such as a
ConfigMap, are skipped. But every named file, and every directory as a whole, must hold at least one
DatasetExperiment, and a misspelt `kind` is reported rather than skipped. The items of a
`kind: List`, which `kubectl get -o yaml` prints, are read one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath

from pydantic import JsonValue

from pipeline_runtime.config.base import RuleSet
from pipeline_runtime.config.experiment import API_VERSION, GROUP, KIND, DatasetExperiment
from pipeline_runtime.config.reading.overrides import (
    OVERRIDE_FILE,
    apply_overrides,
    overridden_paths,
)
from pipeline_runtime.config.reading.validation import judge
from pipeline_runtime.config.reading.wording import Found, find_similar, resolve_path
from pipeline_runtime.config.texts.yaml_documents import (
    MAX_MANIFEST_BYTES,
    Document,
    Path,
    format_path,
    read_documents,
)
from pipeline_runtime.errors import ManifestError, Problem

STDIN = "-"
SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedManifest:
    """One experiment and the place that it was read from."""

    file: str
    document_index: int  # among the documents of the file, from 0
    experiment: DatasetExperiment
    document: dict[str, JsonValue]  # as read, overrides applied
    text: str  # of the whole file
    places: _Places
    warnings: tuple[Problem, ...] = ()

    @property
    def folder(self) -> FilePath:
        """The folder at which its relative paths start; for standard input, the current folder."""
        return FilePath() if self.file == STDIN else FilePath(self.file).parent

    def place(self, problem: Problem) -> Problem:
        """Return the problem with the file, line and column of its field.

        A problem that already has a file is returned as it is. A field that an override set has
        `--set` as its file.
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
    """Positions of one experiment's fields in its file."""

    candidate: _Candidate
    overridden: tuple[Path, ...]

    def place(self, path: Path, message: str, file: str) -> Problem:
        whole = (*self.candidate.prefix, *path)
        problem = Problem(path=format_path(whole), message=message, file=file)
        if any(path[: len(touched)] == touched for touched in self.overridden):
            return replace(problem, file=OVERRIDE_FILE)
        line, column = self.candidate.document.place_of(whole)
        return replace(problem, line=line, column=column)


@dataclass(slots=True, kw_only=True)
class _Findings:
    """The results of reading a file, and whether its experiments were accepted before."""

    loaded: list[LoadedManifest] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    other_kinds: list[str] = field(default_factory=list)
    is_accepted: bool = False


def load_manifests(
    paths: str | FilePath | Iterable[str | FilePath],
    *,
    overrides: Sequence[str] = (),
    is_accepted: bool = False,
) -> list[LoadedManifest]:
    """Read the experiments of files and directories.

    Args:
        paths: files, directories (searched for *.yaml and *.yml, hidden ones left out), or `-` for
            standard input.
        overrides: `path=value` each, applied to every experiment before it is checked.
        is_accepted: whether an operator accepted them before (`validation.judge`).

    Raises:
        ManifestError: with every problem of every file, in the order of the files.
    """
    chosen = [paths] if isinstance(paths, str | FilePath) else list(paths)
    if not chosen:
        raise ManifestError([Problem(path="", message="must name a file or a directory, got none")])
    loaded: list[LoadedManifest] = []
    problems: list[Problem] = []
    for path in chosen:
        findings = _load_path(str(path), overrides, is_accepted=is_accepted)
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
    findings = _Findings()
    _read(text, file, overrides, findings)
    _require_one(findings, file)
    if findings.problems:
        raise ManifestError(findings.problems)
    return findings.loaded


def _load_path(path: str, overrides: Sequence[str], *, is_accepted: bool) -> _Findings:
    findings = _Findings(is_accepted=is_accepted)
    is_directory = path != STDIN and FilePath(path).is_dir()
    for file in _files_in(FilePath(path)) if is_directory else [path]:
        try:
            _read(_read_text(file), file, overrides, findings)
        except ValueError as error:
            findings.problems.append(Problem(path="", message=str(error), file=file))
    _require_one(findings, path)
    return findings


def _files_in(directory: FilePath) -> Iterator[str]:
    for path in sorted(directory.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(directory).parts)
        if path.suffix in SUFFIXES and path.is_file() and not hidden:
            yield str(path)


def _read_text(file: str) -> str:
    """Return the text of a file; reads one byte more than allowed, to check the bound."""
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


def _read(text: str, file: str, overrides: Sequence[str], findings: _Findings) -> None:
    """Add the experiments and problems of a text to the findings."""
    for index, document in enumerate(read_documents(text, file)):
        if document.problems:
            findings.problems += document.problems
            if document.value is None:
                continue
        for candidate in _candidates(document, index):
            if (other := _other_kind(candidate.value)) is not None:
                findings.other_kinds.append(other)
                continue
            _judge(candidate, findings, text=text, file=file, overrides=overrides)


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
    """Return the kind of an object that is no experiment; None if it is, or was meant to be one."""
    if not isinstance(value, dict):
        return None
    kind, version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        return None
    ours = kind == KIND or version.startswith(f"{GROUP}/") or find_similar(kind, [KIND])
    return None if ours else kind


def _judge(
    candidate: _Candidate, findings: _Findings, *, text: str, file: str, overrides: Sequence[str]
) -> None:
    value = candidate.value
    try:
        value = apply_overrides(value, overrides) if overrides else value
        overridden = overridden_paths(value, overrides)
    except ManifestError as error:
        findings.problems += [p for p in error.problems if p not in findings.problems]
        overridden = []
    places = _Places(candidate=candidate, overridden=tuple(overridden))
    verdict = judge(value, RuleSet.NONE if findings.is_accepted else RuleSet.ALL)
    if verdict.experiment is None:
        findings.problems += _place_problems(verdict.found, places, file)
    elif isinstance(value, dict):
        findings.loaded.append(
            LoadedManifest(
                file=file,
                document_index=candidate.index,
                experiment=verdict.experiment,
                document=value,
                text=text,
                places=places,
                warnings=candidate.document.warnings,
            )
        )


def _place_problems(found: Sequence[Found], places: _Places, file: str) -> list[Problem]:
    """Return the problems with file, line and column, in the order of the file."""
    prefix = places.candidate.prefix
    broken = [problem.path for problem in places.candidate.document.problems]
    problems = [
        places.place(path, message, file)
        for path, message in found
        # Do not report a field again that the YAML parser has reported.
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
