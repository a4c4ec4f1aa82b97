"""Read the measurements of `lastmile profile` that a simulation uses (docs/profile.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import from_json

from dataset_operator.errors import UserError
from pipeline_runtime.config import DatasetExperiment, hash_parts

PROFILE_FILE = "profile.json"
PROFILE_VERSION = 1

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Shares of a time add up to 1 within rounding.
Share = Annotated[float, Field(ge=0, le=1.01, allow_inf_nan=False)]


class Part(BaseModel):
    """A part of the profile: fields that are not used here are ignored."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class Figure(Part):
    """A figure that was measured several times."""

    median: Positive
    low: Positive
    high: Positive


class Name(Part):
    """The experiment that was measured."""

    name: str


class Sample(Part):
    """Rows of the sample, rows of an epoch, and rows of the sample that reach the model."""

    rows: Annotated[int, Field(ge=1)]
    rows_left: Annotated[int, Field(ge=0)]
    samples: Annotated[int, Field(ge=1)]


class Trainer(Part):
    """One rank that never waits, and the shares of its time."""

    device: str
    batch_rows: Annotated[int, Field(ge=1)]
    intake: Figure
    model_ratio: Share
    batching_ratio: Share
    collate_ratio: Share
    transfer_ratio: Share


class Step(Part):
    """A part of a reader's work."""

    kind: str
    share: Share


class Need(Part):
    """Samples per second of one reader, and the headroom of the profile's own advice."""

    reader: Figure
    headroom: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]


class Profile(Part):
    """The fields of `profile.json` that a simulation uses."""

    experiment: Name
    measured_at: str
    spec_hashes: dict[str, str] = Field(default_factory=dict)
    sample: Sample
    trainer: Trainer
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    need: Need


def load_profile(path: Path, advice: str) -> Profile:
    """Return the profile of a file, or of the folder that contains it.

    Args:
        advice: for errors: how to make a profile.

    Raises:
        UserError: the file is missing, or is not a profile.
    """
    file = path / PROFILE_FILE if path.is_dir() else path
    try:
        document = from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"--profile must be a {PROFILE_FILE} or its folder, got {str(file)!r}: "
            f"{error.strerror}; {advice}"
        ) from error
    except ValueError as error:  # neither JSON nor UTF-8
        raise UserError(f"--profile must be JSON, got {str(file)!r}: {error}; {advice}") from error
    if not isinstance(document, dict) or "trainer" not in document:
        raise UserError(
            f"--profile must be what `lastmile profile` wrote, got {str(file)!r}, which has no "
            f"`trainer`; {advice}"
        )
    return _parse(document, file, advice)


def _parse(document: Mapping[str, Any], file: Path, advice: str) -> Profile:
    version = document.get("version")
    if version != PROFILE_VERSION:
        raise UserError(
            f"{file}: version: must be {PROFILE_VERSION}, got {version!r}; use the Lastmile that "
            f"wrote it, or {advice}"
        )
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        problems = [
            f"{file}: {'.'.join(map(str, e['loc']))}: {_lower(e['msg'])}, got {_show(e['input'])}"
            for e in error.errors(include_url=False)
        ]
        raise UserError("\n".join([*problems, f"{file}: is no whole profile; {advice}"])) from error


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def find_changes(profile: Profile, experiment: DatasetExperiment, advice: str) -> tuple[str, ...]:
    """Return the fields of the spec that differ from the measured manifest.

    Raises:
        UserError: the profile belongs to another experiment.
    """
    now = hash_parts(experiment)
    known = profile.spec_hashes
    changed = tuple(f"spec.{field}" for field in now if known.get(field, now[field]) != now[field])
    is_other = changed or not known  # an equal manifest under another name is fine
    if profile.experiment.name != experiment.metadata.name and is_other:
        raise UserError(
            f"--profile must be of the manifest's experiment ({experiment.metadata.name}), got one "
            f"of {profile.experiment.name!r}; {advice}"
        )
    return changed
