"""The command line without a run: its output, and its exit codes."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_told

from pipeline_runtime import errors
from pipeline_runtime.cli import main
from pipeline_runtime.cli.failures import exit_code_of

MANIFEST = """
apiVersion: experiments.lastmile.dev/v1alpha1
kind: DatasetExperiment
metadata: {{name: {name}}}
spec:
  dataset: {{parquet: {{uri: t/}}}}
  pipeline:
  - filter: {{where: "{where}"}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "build/t").mkdir(parents=True)
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "build/t/a.parquet")
    (tmp_path / "good.yaml").write_text(MANIFEST.format(name="good", where="x > 1"))
    (tmp_path / "bad.yaml").write_text(MANIFEST.format(name="Bad_Name", where=""))
    (tmp_path / "typo.yaml").write_text(MANIFEST.format(name="typo", where="y > 1"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/lastmile", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("run_id", ["", "a b", "../x", "-x", "é", "x" * 64])
def test_an_invalid_run_id_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, run_id: str
) -> None:
    assert call(monkeypatch, "run", "-f", "good.yaml", f"--run-id={run_id}") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--run-id" in said
    assert "63" in said


def test_a_path_that_is_not_utf8_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    latin = "r\udcf6\udcf6t"  # Python's form of the Latin-1 bytes of "rööt"
    assert call(monkeypatch, "explain", "-f", "good.yaml", "--storage-root", latin) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert_told(line, "error: … udcf6 … UTF-8 … LC_ALL=C.UTF-8")


def test_a_folder_that_is_not_utf8_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    latin = folder / "r\udcf6t"
    latin.mkdir()
    monkeypatch.chdir(latin)
    assert call(monkeypatch, "explain", "-f", "../good.yaml") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_validate_reports_a_valid_manifest(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert call(monkeypatch, "validate", "-f", "good.yaml") == 0
    assert capsys.readouterr().out == "good.yaml: good: valid\n"


def test_validate_reports_every_problem_of_every_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert call(monkeypatch, "validate", "-f", "good.yaml", "-f", "bad.yaml") == 2
    captured = capsys.readouterr()
    assert captured.out == "good.yaml: good: valid\n"
    lines = captured.err.splitlines()
    assert lines[0].startswith("error: bad.yaml:4:12: metadata.name: ")
    assert lines[1].startswith("error: bad.yaml:8:14: spec.pipeline[0].filter.where: ")
    assert lines[-1] == "2 problems"


def test_validate_json_is_json_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert call(monkeypatch, "validate", "--json", "-f", "bad.yaml") == 2
    document = json.loads(capsys.readouterr().out)
    assert document["valid"] is False
    assert [problem["path"] for problem in document["problems"]] == [
        "metadata.name",
        "spec.pipeline[0].filter.where",
    ]


def test_validate_finds_an_expression_that_does_not_parse(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (folder / "syntax.yaml").write_text(MANIFEST.format(name="syntax", where="x > (1"))
    assert call(monkeypatch, "validate", "-f", "syntax.yaml") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: syntax.yaml:8:14: spec.pipeline[0].filter.where: ")
    assert "\n    x > (1\n" in captured.err


@pytest.mark.parametrize(
    ("where", "message"),
    [
        pytest.param("lowr(x) = 'a'", "'lowr' … lower", id="function"),
        pytest.param("abs(x, 2) > 1", "abs … 1 … 2", id="number of arguments"),
        pytest.param("cast(x as in64) > 1", "cast … int64", id="type of a cast"),
    ],
)
def test_validate_finds_errors_in_expressions(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, where: str, message: str
) -> None:
    (folder / "names.yaml").write_text(MANIFEST.format(name="names", where=where))
    assert call(monkeypatch, "validate", "-f", "names.yaml") == 2
    found = f"error: names.yaml:8:14: spec.pipeline[0].filter.where: … {message}"
    assert_told(capsys.readouterr().err, found)


def test_validate_finds_an_unknown_type(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    cast = MANIFEST.replace(
        'filter: {{where: "{where}"}}', "cast: {{columns: [{{name: x, type: {where}}}]}}"
    )
    (folder / "cast.yaml").write_text(cast.format(name="cast", where="int65"))
    assert call(monkeypatch, "validate", "-f", "cast.yaml") == 2
    found = "error: cast.yaml:8:32: spec.pipeline[0].cast.columns[0].type: … 'int65' … 'int64'"
    assert_told(capsys.readouterr().err, found)


def test_an_error_in_an_override_names_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    change = "pipeline[0].filter.where=y > 1"
    assert call(monkeypatch, "explain", "-f", "good.yaml", "--set", change) == 2
    assert "--set: spec.pipeline[0].filter.where: " in capsys.readouterr().err


def test_validate_without_a_file_is_a_usage_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert call(monkeypatch, "validate") == 2
    assert "-f" in capsys.readouterr().err


def test_explain_prints_the_plan_and_set_changes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert call(monkeypatch, "explain", "-f", "good.yaml") == 0
    assert "x > 1" in capsys.readouterr().out
    change = "pipelineOptions.debug.pushdown=false"
    assert call(monkeypatch, "explain", "-f", "good.yaml", "--set", change, "--json") == 0
    assert json.loads(capsys.readouterr().out)["pushedPredicates"] == []


def test_explain_shows_where_an_expression_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert call(monkeypatch, "explain", "-f", "typo.yaml") == 2
    told, *place, _ = capsys.readouterr().err.splitlines()
    assert_told(told, "error: typo.yaml:8:14: spec.pipeline[0].filter.where: … 'y' … x")
    assert place == ["    y > 1", "    ^"]


@pytest.mark.parametrize("command", ["explain", "run"])
@pytest.mark.parametrize(
    ("training", "message"),
    [
        pytest.param(
            "    columns: [x]\n    config: {learningrate: 1}",
            "bad.yaml:15:14: spec.training.config.learningrate: ",
            id="a misspelt option of the built-in model",
        ),
        pytest.param(
            "    columns: [s]",
            "bad.yaml:14:5: spec.training.columns: column 's': ",
            id="a column that no tensor holds",
        ),
    ],
)
def test_invalid_training_is_refused_before_the_run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    command: str,
    training: str,
    message: str,
) -> None:
    table = pa.table({"x": [1, 2], "y": [0, 1], "s": [{"a": 1}, {"a": 2}]})
    pq.write_table(table, folder / "build/t/a.parquet")
    text = MANIFEST.format(name="bad", where="x > 0")
    text += "  training:\n    labelColumn: y\n    batchSize: 2\n    seed: 1\n    epochs: 1\n"
    (folder / "bad.yaml").write_text(text + training + "\n")
    assert call(monkeypatch, command, "-f", "bad.yaml") == 2
    assert message in capsys.readouterr().err


def test_a_missing_entrypoint_is_shown_with_its_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    text = MANIFEST.format(name="gone", where="x > 0") + "  training: {entrypoint: nowhere:loop}\n"
    (folder / "gone.yaml").write_text(text)
    assert call(monkeypatch, "run", "-f", "gone.yaml") == 2
    assert_told(capsys.readouterr().err, "… gone.yaml:9:14: spec.training.entrypoint: … 'nowhere'")


def test_a_missing_table_has_its_own_exit_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert call(monkeypatch, "explain", "-f", "good.yaml", "--storage-root", "elsewhere/") == 3
    assert "elsewhere/t/: " in capsys.readouterr().err


def test_sample_data_is_bounded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert call(monkeypatch, "sample-data", "--rows", "5") == 2
    assert_told(capsys.readouterr().err, "… --rows … 10,000 … 100,000,000 … 5")


def test_sample_data_reports_its_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert call(monkeypatch, "sample-data", "--rows", "10000", "--output", "out", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 10_000


def test_sample_data_writes_iceberg_tables(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert call(monkeypatch, "sample-data", "--iceberg", "--rows", "10000", "--json") == 0
    assert json.loads(capsys.readouterr().out)["directory"] == "build/lake"
    tables = {path.name for path in (folder / "build/lake/warehouse/sample").iterdir()}
    assert tables == {"impressions", "user_actions", "user_features"}


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("lastmile 0.")


def test_report_of_a_folder_without_a_run_is_a_clear_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert call(monkeypatch, "report", str(folder)) == 3
    assert str(folder) in capsys.readouterr().err


def test_every_kind_of_error_has_an_exit_code() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.__name__: exit_code_of(kind.__name__) for kind in kinds}
    assert {codes[name] for name in ("ManifestError", "SourceError", "CheckpointError")} == {
        2,
        3,
        4,
    }
    assert codes["Interrupted"] == 130
    assert codes["OutputRefused"] == 5
    assert codes["StepError"] == codes["TrainingError"] == codes["OutputError"] == 1
    assert exit_code_of(None) == 0
