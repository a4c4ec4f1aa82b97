"""Relative paths and `~` in a manifest mean the same from any working folder."""

import io
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from facts import assert_told

from pipeline_runtime.cli import main
from pipeline_runtime.cli.options import working_dir
from pipeline_runtime.config import load_manifests, locate_artifacts

Capture = pytest.CaptureFixture[str]


def write_manifest(path: Path, **spec: Any) -> Path:
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "copied"},
        "spec": {
            "dataset": {"parquet": {"uri": "t/"}},
            "output": {"parquet": {"uri": "out/"}},
            **spec,
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


def write_table(folder: Path) -> None:
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1, 2]}), folder / "a.parquet")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, beside which the home folder is."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["lastmile", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


@pytest.mark.parametrize(
    ("table", "file", "spec", "options"),
    [
        pytest.param("team/lake/t", "team/m.yaml", {"root": "lake"}, [], id="of the manifest"),
        pytest.param("lake/t", "m.yaml", {"root": "lake/"}, [], id="of a manifest that is here"),
        pytest.param("lake/t", "-", {"root": "lake"}, [], id="standard input: the current folder"),
        pytest.param("../home/lake/t", "team/m.yaml", {"root": "~/lake"}, [], id="of the home"),
        pytest.param(
            "team/lake/t",
            "team/m.yaml",
            {"root": "lake"},
            ["--storage-root", "other"],
            id="before the option",
        ),
        pytest.param(
            "lake/t",
            "team/m.yaml",
            {},
            ["--storage-root", "lake"],
            id="of the option: the current folder",
        ),
    ],
)
def test_the_storage_root_starts_at_the_manifest(
    table: str,
    file: str,
    spec: dict[str, str],
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_table(Path(table))
    path = write_manifest(Path("m.yaml" if file == "-" else file), storage=spec)
    text = io.TextIOWrapper(io.BytesIO(path.read_bytes()), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", text)
    assert call(monkeypatch, "explain", "-f", file, *options) == 0


def test_a_tilde_in_a_manifest_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    write_table(home / "t")
    write_manifest(
        Path("m.yaml"),
        dataset={"parquet": {"uri": "~/t/"}},
        output={"parquet": {"uri": "~/out"}},
        artifacts={"uri": "~/runs"},
        code={"workingDir": "~/code"},
    )
    command = ("run", "-f", "m.yaml", "--metrics-port", "0", "--output", "~/report")
    assert call(monkeypatch, *command) == 0
    assert (home / "out" / "_lastmile_output.json").exists()
    assert (home / "report" / "summary.json").exists()
    assert len(list((home / "runs" / "copied").iterdir())) == 1
    [manifest] = load_manifests("m.yaml")
    assert working_dir(manifest) == (str(home / "code"),)
    assert locate_artifacts(manifest.experiment, "s3://bucket") == "~/runs/copied/"
    assert not Path("~").exists()


@pytest.mark.parametrize(
    ("left", "is_warned"),
    [
        pytest.param("lake/experiments/copied/R/checkpoints/step-1/checkpoint.json", True, id="is"),
        pytest.param("lake/experiments/copied/R/plan.json", False, id="no checkpoint"),
        pytest.param("lake/experiments/x/R/checkpoints/step-1/checkpoint.json", False, id="other"),
    ],
)
def test_checkpoints_at_the_old_place_are_a_warning(
    left: str, is_warned: bool, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    write_table(Path("team/lake/t"))
    write_manifest(Path("team/m.yaml"), storage={"root": "lake"})
    Path(left).parent.mkdir(parents=True)
    Path(left).write_text("{}")
    assert call(monkeypatch, "run", "-f", "team/m.yaml", "--metrics-port", "0") == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "storage.root" in line]
    assert len(warnings) == is_warned
    places = f"{here}/lake/experiments/copied … {here}/team/lake/experiments/copied"
    for warning in warnings:
        assert_told(warning, f"warning: … {places}")


def test_a_manifest_in_the_current_folder_has_no_old_place(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    write_table(Path("lake/t"))
    write_manifest(Path("m.yaml"), storage={"root": "lake"})
    left = Path("lake/experiments/copied/R/checkpoints/step-1/checkpoint.json")
    left.parent.mkdir(parents=True)
    left.write_text("{}")
    assert call(monkeypatch, "run", "-f", "m.yaml", "--metrics-port", "0") == 0
    assert "storage.root" not in capsys.readouterr().err
