"""The archive for a machine with a GPU and no network has the code, and little of it."""

import tarfile
from pathlib import Path

from benchmarks.gpu.pack import MAX_BYTES, write_archive


def test_the_archive_has_code_and_tests(tmp_path: Path) -> None:
    path = tmp_path / "lastmile-gpu.tar"
    write_archive(path, [])
    assert path.stat().st_size < MAX_BYTES / 8  # the rest is left to wheels
    with tarfile.open(path) as archive:
        names = set(archive.getnames())
    for name in (
        *("run.py", "COMMIT", "pipeline_runtime/loader/loader.py", "benchmarks/gpu/training.py"),
        "tests/gpu/test_gpu_loader.py",
    ):
        assert f"lastmile-gpu/{name}" in names
