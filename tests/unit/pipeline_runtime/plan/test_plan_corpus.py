"""Manifests of tests/corpus/broken that only a table shows to be wrong: exactly that text."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime.config import parse_manifests
from pipeline_runtime.errors import ManifestError
from pipeline_runtime.plan import build_plan

CORPUS = Path(__file__).parents[3] / "corpus" / "broken"
MANIFESTS = sorted(CORPUS.glob("*-planned.yaml"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("corpus")
    rows = {
        "id": [1, 2],
        "x": pa.array([1.5, 2.5]),
        "name": ["a", "b"],
        "score": [1, 2],
        "label": [0, 1],
        "items": [[1], [2, 3]],
    }
    for name, columns in {"t": rows, "side": {"name": [1, 2, 3]}}.items():
        (folder / name).mkdir()
        pq.write_table(pa.table(columns), folder / name / "a.parquet")
    return str(folder)


def problems_of(path: Path, root: str) -> str:
    loaded = parse_manifests(path.read_text(encoding="utf-8"), file=path.name)[0]
    try:
        build_plan(loaded.experiment, root)
    except ManifestError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_that_does_not_fit_its_table_gives_exactly_the_expected_text(
    path: Path, root: str
) -> None:
    expected = path.with_suffix(".expected.txt").read_text(encoding="utf-8")
    assert problems_of(path, root) + "\n" == expected
