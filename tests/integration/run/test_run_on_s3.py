"""Data and checkpoints on a real S3 server: a run that failed goes on from there."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import fs as pafs
from run_support import RECORDER, Clicks, Project, checksum_of, clicks_spec
from s3_server import S3Server
from warm_lastmile import Lastmile


@pytest.fixture
def s3(s3_server: S3Server) -> Iterator[pafs.S3FileSystem]:
    with s3_server.bucket("lake") as found:
        yield found


@pytest.mark.slow
def test_a_run_on_s3_fails_and_goes_on(
    s3: pafs.S3FileSystem,
    s3_server: S3Server,
    clicks: Clicks,
    project: Callable[..., Project],
    tmp_path: Path,
) -> None:
    for name in ("clicks", "blocked"):
        pafs.copy_files(str(clicks.root / name), f"lake/team/{name}", destination_filesystem=s3)
    run = project(root="s3://lake/team/")
    every = {"checkpoint": {"everySteps": 5}}
    run.write(clicks_spec(run, training=every, config={"failAt": 18}))
    lastmile = Lastmile(tmp_path, s3_server.env)
    try:
        failed = lastmile.run(*run.args())
        (run.folder / "cured").touch()
        ended = lastmile.run(*run.args("--resume"))
    finally:
        lastmile.close()

    assert failed.code == 1, failed
    trace, _, rest = failed.stdout.partition("ValueError: the user's own mistake")
    [line] = [n for n, text in enumerate(RECORDER.splitlines(), 1) if "own mistake" in text]
    assert f'recorder_loop.py", line {line}, in loop' in trace
    assert "spec.training.entrypoint: recorder_loop:loop raised" in rest
    assert "last checkpoint: s3://lake/team/experiments/clicks/" in failed.stderr
    assert "step-0000000015" in failed.stderr
    assert ended.code == 0, str(ended)
    assert run.summary.run.resumed_from is not None
    assert run.summary.run.resumed_from.step == 15
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept)
    first, second = run.attempts()
    before = [row for step, ids in first.batches.items() if step <= 15 for row in ids]
    assert sorted(before + second.ids) == sorted(clicks.kept)
    [folder] = s3.get_file_info(pafs.FileSelector("lake/team/experiments/clicks"))
    copied = {info.base_name for info in s3.get_file_info(pafs.FileSelector(folder.path))}
    assert {"summary.json", "report.html", "checkpoints"} <= copied
    assert s3_server.secret_key not in failed.stdout + failed.stderr + ended.stdout + ended.stderr
