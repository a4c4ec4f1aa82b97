"""Packs the benchmark and tests/gpu for a machine without network, in one archive.

    python -m benchmarks.gpu.pack        writes build/lastmile-gpu.tar
    tar xf lastmile-gpu.tar && python3 lastmile-gpu/run.py          there

The machine needs Linux on x86-64, Python 3.12, torch, numba and numpy. The archive brings the
wheels of everything else that is imported, by the hashes of requirements.lock.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.harness.children import ROOT
from benchmarks.harness.machine import describe_commit

NAME: Final = "lastmile-gpu"
MAX_BYTES: Final = 64 << 20  # the limit of such machines
_PACKAGES: Final = (
    *("pyarrow", "lz4", "zstandard", "pyyaml"),
    *("pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection"),
    *("pytest", "iniconfig", "packaging", "pluggy", "pygments"),
)
_PLATFORMS: Final = tuple(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 26, 24, 17, 12, 5))
# Parts of pyarrow's wheel that nothing here loads: more than a third of its bytes.
_UNUSED: Final = re.compile(
    r"pyarrow/(include|src|tests)/|pyarrow/[^/]*(flight|_s3)[^/]*\.so|\.so\.\d+\.\d+\.\d+$"
)
_CODE: Final = (
    *("pipeline_runtime", "tests/gpu", "LICENSE", "benchmarks/__init__.py"),
    *("benchmarks/harness", "benchmarks/dataloading", "benchmarks/gpu"),
)


def main() -> int:
    """Write the archive, and print its size; 1 if it is too large."""
    archive = ROOT / "build" / f"{NAME}.tar"
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        download_wheels(Path(folder))
        write_archive(archive, Path(folder).glob("*.whl"))
    num_bytes = archive.stat().st_size
    print(f"{archive}: {num_bytes / 2**20:.1f} MiB of {MAX_BYTES >> 20}")
    return int(num_bytes > MAX_BYTES)


def download_wheels(folder: Path) -> None:
    """Fetch the wheels into a folder, by pip and its settings."""
    lock = (ROOT / "requirements.lock").read_text()
    pins = [re.search(rf"^{name}==.*?[^\\]$", lock, re.M | re.S) for name in _PACKAGES]
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(pin[0] for pin in pins if pin) + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--requirement", str(requirements)]
    command += ["--only-binary=:all:", "--implementation=cp", "--python-version=3.12"]
    command += [f"--platform={platform}" for platform in _PLATFORMS]
    subprocess.run([*command, "--dest", str(folder)], check=True)


def write_archive(path: Path, wheels: Iterable[Path]) -> None:
    """Write code and wheels; the code is that of the files that git knows."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *_CODE]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    with tarfile.open(path, "w") as archive:
        for name in filter(Path.exists, map(ROOT.joinpath, listed.stdout.splitlines())):
            archive.add(name, f"{NAME}/{name.relative_to(ROOT)}")
        for wheel in sorted(wheels):
            _add_bytes(archive, f"wheels/{wheel.name}", _shrink_wheel(wheel))
        archive.add(Path(__file__).with_name("on_device.py"), f"{NAME}/run.py")
        _add_bytes(archive, "COMMIT", describe_commit().encode())


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(f"{NAME}/{name}")
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _shrink_wheel(wheel: Path) -> bytes:
    """Return a wheel to unpack, without unused parts."""
    shrunk = io.BytesIO()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(shrunk, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            if not _UNUSED.search(name):
                new.writestr(name, old.read(name))
    return shrunk.getvalue()


if __name__ == "__main__":
    sys.exit(main())
