"""`validate` and `explain` refuse the same manifests, in the same words and with the same code."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from experiments import build_experiment

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
    rows = {"id": [1, 2], "x": [1.5, 2.5], "name": ["a", "b"], "label": [0, 1], "same": [1, 1]}
    empty = dict.fromkeys(("x", "label"), pa.array([], pa.int64()))
    tables = {"t": rows, "side": {"name": [1, 2, 3]}, "empty": empty}
    for name, columns in tables.items():
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


def build(table: str = "t", dataset: Any = None, **parts: Any) -> dict[str, Any]:
    """Return a manifest that trains, unless it has an `output`."""
    source = {"parquet": {"uri": f"{table}/"}, **(dataset or {})}
    if "output" not in parts:
        parts["training"] = {"labelColumn": "label", "columns": ["x"], **parts.get("training", {})}
    return build_experiment(dataset=source, **parts)


def write(
    manifest: dict[str, Any], folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, ...]:
    """Write a manifest, and return the options of a command about it."""
    (folder / "m.yaml").write_text(yaml.safe_dump(manifest))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")  # a command adds the manifest's folder to both
    return "-f", str(folder / "m.yaml"), "--storage-root", str(root)


ONE_IDENTITY = build(
    dataset={"rowKey": ["same"]}, training={"evaluation": {"where": "x > 0", "maxRows": 1}}
)
BY_RUN = {
    "rows of one identity": (ONE_IDENTITY, 2),
    "no row to evaluate": (build(training={"evaluation": {"where": "x > 1.5 and id = 1"}}), 2),
    "no row in the table": (build("empty"), 1),
    "no row after pruning": (build(dataset={"where": "x > 7"}), 1),
    "a label that is not there": (build(training={"labelColumn": "clicked"}), 2),
    "a table in the place of its source": (build(output={"parquet": {"uri": "t/"}}), 2),
    "a table in the place of the artifacts": (
        build(output={"parquet": {"uri": "experiments/"}}),
        2,
    ),
    "a table in the place of a mount": (build(output={"parquet": {"uri": "/proc/"}}), 5),
}
BY_ITS_CODE = {
    "no module": build(training={"entrypoint": "absent:loop"}),
    "no function": build(training={"entrypoint": "lone_module:absent"}),
    "a function of no argument": build(training={"entrypoint": "lone_module:loop"}),
    "a model of no argument": build(training={"model": "lone_module:loop"}),
}


@pytest.mark.parametrize(("manifest", "code"), BY_RUN.values(), ids=BY_RUN.keys())
def test_what_run_refuses_both_commands_refuse(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    manifest: dict[str, Any],
    code: int,
) -> None:
    options = write(manifest, tmp_path, root, monkeypatch)
    found = judge(monkeypatch, capsys, "validate", *options)
    assert found[0] == code
    assert judge(monkeypatch, capsys, "explain", *options) == found
    monkeypatch.chdir(tmp_path)
    assert judge(monkeypatch, capsys, "run", *options)[0] == code


@pytest.mark.parametrize("manifest", BY_ITS_CODE.values(), ids=BY_ITS_CODE.keys())
def test_code_that_cannot_be_run_is_refused(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    manifest: dict[str, Any],
) -> None:
    (tmp_path / "lone_module.py").write_text("def loop(): ...\n")
    options = write(manifest, tmp_path, root, monkeypatch)
    code, text = judge(monkeypatch, capsys, "validate", *options)
    assert code == 2
    assert judge(monkeypatch, capsys, "explain", *options) == (code, text)
    assert judge(monkeypatch, capsys, "validate", "--no-tables", *options)[0] == 0


def test_output_of_the_users_code_is_no_result(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "loud_module.py").write_text("print('imported')\ndef loop(ctx): ...\n")
    manifest = build(training={"entrypoint": "loud_module:loop"})
    options = write(manifest, tmp_path, root, monkeypatch)
    monkeypatch.setattr(sys, "argv", ["lastmile", "validate", "--json", *options])
    with pytest.raises(SystemExit):
        main()
    assert json.loads(capsys.readouterr().out)["valid"]


def test_validate_can_leave_tables_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "m.yaml").write_text(MANIFEST.format(uri="gone/", where="x > 1"))
    options = ("--no-tables", "-f", str(tmp_path / "m.yaml"))
    assert judge(monkeypatch, capsys, "validate", *options) == (0, "")
