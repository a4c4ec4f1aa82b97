"""Every manifest of tests/corpus/broken gives exactly the text beside it.

To add one: write NN-name.yaml, write NN-name.expected.txt, run this. What only a later check finds
(an expression's syntax, say) comes in through `CHECKS`: functions that take a loaded manifest and
raise ManifestError. A file whose name ends in -planned is left to the test that has such checks.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline_runtime.config import LoadedManifest, ManifestError, parse_manifests

CORPUS = Path(__file__).parents[3] / "corpus" / "broken"
CHECKS: list[Callable[[LoadedManifest], object]] = []


def problems_of(path: Path) -> str:
    """Return the problems that a person reads when they validate the file, or ""."""
    try:
        for loaded in parse_manifests(path.read_text(encoding="utf-8"), file=path.name):
            for check in CHECKS:
                check(loaded)
    except ManifestError as error:
        return str(error)
    return ""


def is_manifest_level(path: Path) -> bool:
    """Return whether reading alone finds the file's problems."""
    return not path.name.removesuffix(".yaml").endswith("-planned")


MANIFESTS = [path for path in sorted(CORPUS.glob("*.yaml")) if is_manifest_level(path)]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_broken_manifest_gives_exactly_the_expected_text(path: Path) -> None:
    expected = path.with_suffix(".expected.txt").read_text(encoding="utf-8")
    assert problems_of(path) + "\n" == expected


def test_the_corpus_is_large_and_complete() -> None:
    texts = {path.name.removesuffix(".expected.txt") for path in CORPUS.glob("*.expected.txt")}
    assert len(MANIFESTS) >= 40
    assert texts == {path.stem for path in CORPUS.glob("*.yaml")}


def test_no_expected_text_shows_a_secret() -> None:
    for path in CORPUS.glob("*.expected.txt"):
        assert "not-a-real-one" not in path.read_text(encoding="utf-8"), path.name
