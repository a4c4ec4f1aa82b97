"""`validate` and `explain` refuse the same manifests, in the same words and with the same code."""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime.cli import main

CORPUS = Path(__file__).parents[3] / "corpus" / "broken"
MANIFEST = """
apiVersion: experiments.lastmile.dev/v1alpha1
kind: DatasetExperiment
metadata: {{name: good}}
spec:
  dataset: {{parquet: {{uri: {uri}}}}}
  pipeline:
  - filter: {{where: "{where}"}}
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judging")
    rows = {"id": [1, 2], "x": [1.5, 2.5], "name": ["a", "b"], "label": [0, 1]}
    for name, columns in {"t": rows, "side": {"name": [1, 2, 3]}}.items():
        (folder / name).mkdir()
        pq.write_table(pa.table(columns), folder / name / "a.parquet")
    return folder


def judge(monkeypatch: pytest.MonkeyPatch, capsys: Capture, *arguments: str) -> tuple[int, str]:
    """Return the exit code of a command and its errors."""
    monkeypatch.setattr(sys, "argv", ["lastmile", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.yaml")), ids=lambda path: path.stem)
def test_both_commands_refuse_the_corpus_alike(
    path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    options = ("-f", str(path), "--storage-root", str(root))
    code, text = judge(monkeypatch, capsys, "validate", *options)
    assert code == 2
    assert judge(monkeypatch, capsys, "explain", *options) == (code, text)


@pytest.mark.parametrize(
    ("uri", "where", "code"),
    [
        pytest.param("t/", "x > 1", 0, id="whole"),
        pytest.param("t/", "nothing > 1", 2, id="unknown column"),
        pytest.param("t/", "x > (1", 2, id="expression"),
        pytest.param("gone/", "x > 1", 3, id="no table"),
        pytest.param("gone/", "x > (1", 2, id="expression and no table"),
    ],
)
def test_both_commands_judge_tables_alike(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    uri: str,
    where: str,
    code: int,
) -> None:
    (tmp_path / "m.yaml").write_text(MANIFEST.format(uri=uri, where=where))
    options = ("-f", str(tmp_path / "m.yaml"), "--storage-root", str(root))
    found = judge(monkeypatch, capsys, "validate", *options)
    assert found[0] == code
    assert judge(monkeypatch, capsys, "explain", *options) == found


def test_validate_can_leave_tables_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "m.yaml").write_text(MANIFEST.format(uri="gone/", where="x > 1"))
    options = ("--no-tables", "-f", str(tmp_path / "m.yaml"))
    assert judge(monkeypatch, capsys, "validate", *options) == (0, "")
