"""Package sources of this machine; the repository names none of them.

pip's settings (its files and PIP_* variables), the certificates that go with them and
TORCH_INDEX_URL become secrets of the build: files that are mounted while a step runs, and are in no
layer. The Debian mirror is apt's; `base_image.py` keeps it in the base, which installs from it.
"""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.images.buildah import run

SUITE = "bookworm"
DEFAULT_MIRROR = "http://deb.debian.org/debian"
# The settings that say where packages come from; others are about installing on this machine.
_PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_CERTIFICATES = "/run/secrets/ca.crt"  # where the secret of that name is mounted


def debian_mirror() -> str:
    """Return the mirror of SUITE that apt is set to, or Debian's own."""
    if shutil.which("apt-get") is None:
        return DEFAULT_MIRROR
    shape = "$(SITE) $(RELEASE) $(COMPONENT)"
    for line in run("apt-get", "indextargets", "--format", shape).splitlines():
        site, _, rest = line.partition(" ")
        if rest == f"{SUITE} main":
            return site
    return DEFAULT_MIRROR


def torch_index() -> str | None:
    """Return the index that torch is taken from, None for the usual one."""
    return os.environ.get("TORCH_INDEX_URL") or None


def torch_source() -> str:
    """Return a word that identifies the source of torch without naming it."""
    index = torch_index()
    return hashlib.sha256(index.encode()).hexdigest()[:12] if index else "pypi"


def parse_pip_settings(listed: str) -> dict[str, str]:
    """Return the settings that `pip config list` printed, later ones (variables) over earlier."""
    lines = re.findall(r"^(?:global|install|:env:)\.([a-z-]+)=(.+)$", listed, re.MULTILINE)
    return {name: str(ast.literal_eval(value)) for name, value in lines}


def build_pip_configuration(settings: dict[str, str]) -> str:
    """Return a pip.conf for a build on this machine's index and certificates."""
    kept = {name: settings[name] for name in _PIP_SETTINGS if name in settings}
    if "cert" in settings:
        kept["cert"] = _CERTIFICATES
    lines = [f"{name} = " + value.replace("\n", "\n  ") for name, value in kept.items()]
    return "\n".join(["[global]", "disable-pip-version-check = true", *lines, ""])


@contextmanager
def secrets() -> Iterator[list[str]]:
    """Yield buildah's options for the secrets of a build; their files are gone afterwards."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    settings = parse_pip_settings(listed)
    with tempfile.TemporaryDirectory() as folder:
        files = {"pip.conf": Path(folder, "pip.conf")}
        files["pip.conf"].write_text(build_pip_configuration(settings))
        if "cert" in settings:
            files["ca.crt"] = Path(settings["cert"])
        index = torch_index()
        if index:
            files["torch-index-url"] = Path(folder, "torch-index-url")
            files["torch-index-url"].write_text(index)
        yield [f"--secret=id={name},src={path}" for name, path in files.items()]
