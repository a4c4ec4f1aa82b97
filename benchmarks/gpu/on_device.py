"""Runs the benchmark and tests/gpu from an archive of `pack`, where it is called run.py.

    python3 lastmile-gpu/run.py [FOLDER]

It ends within ten minutes, and leaves the results in FOLDER (results). The exit code is 1 if the
benchmark or a test failed. This file needs nothing but the standard library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

_TESTS = ("-m", "pytest", "-c", os.devnull, "--rootdir=.", "--noconftest", "-q", "tests/gpu")
_TESTS_SECONDS, _BENCHMARK_SECONDS = 150, 420


def main() -> int:
    """Run the benchmark and the tests; return the exit code."""
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "results").resolve()
    root = Path(__file__).resolve().parent
    for wheel in (root / "wheels").glob("*.whl"):  # without a network, without pip
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root / "site")
    benchmark = ["-m", "benchmarks.gpu", "--data", str(root / "data"), "--output", str(output)]
    benchmark += [] if has_gpu() else ["--rows", "20000", "--rounds", "1"]
    measured = run_python(root, _BENCHMARK_SECONDS, *benchmark)
    passed = not has_gpu() or run_python(root, _TESTS_SECONDS, *_TESTS)
    return int(not (passed and measured))


def has_gpu() -> bool:
    """Return whether the driver lists a GPU; importing torch to ask it takes seconds."""
    if shutil.which("nvidia-smi") is None:
        return False
    return b"GPU " in subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).stdout


def run_python(root: Path, seconds: float, *arguments: str) -> bool:
    """Run Python for a limited time; return whether it succeeded."""
    given = filter(None, [os.environ.get("PYTHONPATH")])
    path = os.pathsep.join([str(root), str(root / "site"), *given])
    environment = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, *arguments]
    try:
        return not subprocess.run(command, cwd=root, env=environment, timeout=seconds).returncode
    except subprocess.TimeoutExpired as error:
        print(error, file=sys.stderr)
        return False


if __name__ == "__main__":
    sys.exit(main())
