"""Runs tests/gpu and the benchmark from an archive of `pack`, where it is called run.py.

    python3 lastmile-gpu/run.py [SECONDS] [FOLDER]

It ends within SECONDS (480), and leaves the results and the tests' log in FOLDER (results). The
exit code is 1 if a test or the benchmark failed. This file needs nothing but the standard library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

DEFAULT_SECONDS = 480.0
TESTS_SHARE = 0.25  # of the time, at most
# To start the benchmark, and to end it: its own clock runs without these.
_OVERHEAD_SECONDS = 30.0
_PYTEST = ("-m", "pytest", "-c", os.devnull, "--rootdir=.", "--noconftest", "-q", "tests/gpu")


def main() -> int:
    """Run the tests and the benchmark; return the exit code."""
    end = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_SECONDS)
    output = Path(sys.argv[2] if len(sys.argv) > 2 else "results").resolve()
    output.mkdir(parents=True, exist_ok=True)
    root = Path(__file__).resolve().parent
    site = unpack_wheels(root / "wheels", root / "site")
    paths = [str(root), str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def run(log: str, seconds: float, *arguments: str) -> bool:
        return run_python(root, environment, output / log, seconds, arguments)

    passed = True
    if has_gpu():
        passed = run("tests.txt", (end - time.monotonic()) * TESTS_SHARE, *_PYTEST)
    left = end - time.monotonic()
    options = ["--data", str(root / "data"), "--output", str(output)]
    if has_gpu():
        options += ["--seconds", str(left - _OVERHEAD_SECONDS)]
    measured = run("benchmark.txt", left, "-m", "benchmarks.gpu", *options)
    return int(not (passed and measured))


def unpack_wheels(wheels: Path, site: Path) -> Path:
    """Unpack wheels of this Python into a folder for PYTHONPATH; without a network, without pip."""
    mine = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for wheel in sorted(wheels.glob("*.whl")):
        python, abi, _ = wheel.stem.split("-")[-3:]
        if not (python.startswith("py3") or mine in python.split(".") or abi == "abi3"):
            raise SystemExit(f"{wheel.name}: must be for {mine}; pack with --python of this one")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return site


def has_gpu() -> bool:
    """Return whether the driver lists a GPU; importing torch to ask it takes seconds."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return listed.returncode == 0 and b"GPU " in listed.stdout


def run_python(
    root: Path,
    environment: dict[str, str],
    log: Path,
    seconds: float,
    arguments: tuple[str, ...],
) -> bool:
    """Run Python for a limited time; print and keep its output; return whether it succeeded."""
    command = [sys.executable, *arguments]
    with log.open("wb") as file:
        try:
            code = subprocess.run(
                command,
                cwd=root,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
            file.write(f"\nended after {seconds:.0f} s\n".encode())
    print(log.read_text(errors="replace"), flush=True)
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
