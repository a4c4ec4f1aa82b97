"""The operator's settings from a YAML file and options; every problem with its field, in one go."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from dataset_operator.errors import UserError
from dataset_operator.settings import OperatorSettings, parse_settings
from pipeline_runtime.config import format_path, locate_error

_MAX_SHOWN_CHARS = 80


def load_settings(file: Path | None, overrides: Mapping[str, str | None]) -> OperatorSettings:
    """Load settings from a file; given options take precedence. Raises UserError."""
    document = _read(file) if file else {}
    document |= {name: value for name, value in overrides.items() if value is not None}
    try:
        return parse_settings(document)
    except ValidationError as error:
        where = f"{file}: " if file else ""
        problems = [where + _explain(e) for e in error.errors(include_url=False)]
        raise UserError("\n".join(problems)) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(file.read_text()) or {}
    except OSError as error:
        raise UserError(
            f"--config must be a readable file, got {file}: {error.strerror}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: must be YAML, got: {error}") from error
    if not isinstance(document, dict):
        raise UserError(f"{file}: must be a mapping of settings, got {_show(document)}")
    return document


def _explain(error: ErrorDetails) -> str:
    path = format_path(locate_error(error, OperatorSettings)[0])
    if error["type"] == "missing":
        advice = (
            "set it in --config FILE, or by --runtime-image" if path == "runtimeImage" else "add it"
        )
        return f"{path}: must be given; {advice}"
    if error["type"] == "extra_forbidden":
        return f"{path}: is no setting{_suggest(path)}"
    message = str(error["msg"])
    return f"{path}: {message[:1].lower()}{message[1:]}, got {_show(error['input'])}; change it"


def _suggest(path: str) -> str:
    known = [str(field.alias) for field in OperatorSettings.model_fields.values()]
    is_nested = "." in path
    close = [] if is_nested else difflib.get_close_matches(to_camel(path), known, n=1)
    return f"; did you mean {close[0]}?" if close else "; remove it"


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
