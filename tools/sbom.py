"""Writes software bills of materials (SBOMs) as SPDX 2.3 JSON, for an image and for the wheel.

    python sbom.py image NAME    prints the installed packages; runs while the image is built
    python -m tools.sbom         writes sbom/lastmile.spdx.json, which goes into the wheel

An image's SBOM lists Debian's packages from dpkg's database, each Python distribution from its
metadata, and the interpreter. The wheel's SBOM lists the packages that a release was tested with,
from the parts of the lock that the images install; `make lock` writes it again.

Standard library only, since the Dockerfiles run this file alone. An image scanner (syft, trivy)
finds no more, and every build would have to pin, fetch and trust it.
https://spdx.github.io/spdx-spec/v2.3/
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WHEEL_SBOM = ROOT / "sbom" / "lastmile.spdx.json"
DISTRIBUTION = "lastmile-experiments"  # images run this file alone, without pyproject.toml
# The parts of the lock that an installation of the wheel may need, with both extras.
_PARTS = ("operator", "runtime", "torch")
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s\\;]+)", re.MULTILINE)
# Folders without packages, or that belong to other file systems than the image's.
_SKIPPED = frozenset({"proc", "sys", "dev", "run", "tmp"})
_LICENSE = re.compile(r"[A-Za-z0-9.+() -]+")  # an SPDX expression, as PEP 639 asks for
_OWN_LICENSE = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")
_UNKNOWN = "NOASSERTION"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Package:
    """A package that is installed or required.

    Attributes:
        purl: package URL (https://github.com/package-url/purl-spec), by which scanners match it.
        license: an SPDX expression, or NOASSERTION.
    """

    name: str
    version: str
    purl: str
    license: str = _UNKNOWN


def find_installed(root: Path) -> list[Package]:
    """Return the packages that are installed below the root of a file system."""
    found = {*_read_dpkg(root), *_read_distributions(root)}
    if not any(package.purl.startswith("pkg:deb/debian/python3.") for package in found):
        version = platform.python_version()  # Docker's Python images build it from source
        found.add(Package(name="python", version=version, purl=f"pkg:generic/python@{version}"))
    return sorted(found)


def _read_dpkg(root: Path) -> Iterator[Package]:
    """Yield Debian's packages."""
    status = root / "var/lib/dpkg/status"
    if not status.exists():
        return
    release = _read_os_release(root)
    system, suite = release.get("ID", "debian"), release.get("VERSION_CODENAME", "")
    for paragraph in status.read_text(errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        if not fields.get("Status", "").endswith(" installed"):
            continue
        name, version, arch = (fields[key] for key in ("Package", "Version", "Architecture"))
        escaped = version.replace("+", "%2B").replace(":", "%3A")
        distro = f"&distro={suite}" if suite else ""
        purl = f"pkg:deb/{system}/{name}@{escaped}?arch={arch}{distro}"
        yield Package(name=name, version=version, purl=purl)


def _read_os_release(root: Path) -> dict[str, str]:
    path = root / "etc/os-release"
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.partition("=") for line in lines)
    return {name: value.strip('"') for name, _, value in pairs}


def _read_distributions(root: Path) -> Iterator[Package]:
    """Yield Python distributions from all folders."""
    for folder, folders, _ in os.walk(root):
        if folder == str(root):
            folders[:] = [name for name in folders if name not in _SKIPPED]
        for name in folders:
            if name.endswith((".dist-info", ".egg-info")):
                package = _describe(PathDistribution(Path(folder, name)))
                if package is not None:
                    yield package


def _describe(distribution: Distribution) -> Package | None:
    metadata = distribution.metadata
    name, version = metadata["Name"], metadata["Version"]
    if not name or not version:
        return None  # a folder with such a name, but without metadata
    expression = metadata["License-Expression"] or _UNKNOWN
    return _pypi(name, version, expression if _LICENSE.fullmatch(expression) else _UNKNOWN)


def _pypi(name: str, version: str, declared: str = _UNKNOWN) -> Package:
    normalised = re.sub(r"[-_.]+", "-", name).lower()
    purl = f"pkg:pypi/{normalised}@{version.replace('+', '%2B').replace('!', '%21')}"
    return Package(name=normalised, version=version, purl=purl, license=declared)


def read_pins(*locks: str) -> list[Package]:
    """Return the packages that the texts of locks pin, without duplicates."""
    pins = (found for lock in locks for found in _PIN.finditer(lock))
    return sorted({_pypi(found["name"], found["version"]) for found in pins})


def build_document(
    of: Package, packages: Iterable[Package], relationship: str, created: datetime
) -> dict[str, Any]:
    """Build an SPDX document.

    Args:
        of: the described image or wheel.
        packages: its contents or requirements.
        relationship: CONTAINS or DEPENDS_ON.
        created: UTC.
    """
    listed = [(_identify(index), package) for index, package in enumerate(packages, 1)]
    described = [("SPDXRef-0", of), *listed]
    content = json.dumps([package.purl for _, package in described])
    digest = hashlib.sha256(content.encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{of.name}-{of.version}",
        "documentNamespace": f"https://lastmile.dev/spdx/{of.name}-{of.version}-{digest}",
        "creationInfo": {
            "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": [f"Tool: lastmile-sbom-{of.version}"],
        },
        "packages": [_describe_package(*each) for each in described],
        "hasExtractedLicensingInfos": [*_list_licenses(package for _, package in described)],
        "relationships": [
            _relate("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-0"),
            *(_relate("SPDXRef-0", relationship, identifier) for identifier, _ in listed),
        ],
    }


def _list_licenses(packages: Iterable[Package]) -> Iterator[dict[str, str]]:
    """Yield an entry for each licence outside SPDX's list, without which a name is invalid."""
    names = (name for package in packages for name in _OWN_LICENSE.findall(package.license))
    for name in sorted(set(names)):
        yield {"licenseId": name, "extractedText": "See the metadata of the package."}


def _identify(index: int) -> str:
    return f"SPDXRef-{index}"


def _describe_package(identifier: str, package: Package) -> dict[str, Any]:
    return {
        "SPDXID": identifier,
        "name": package.name,
        "versionInfo": package.version,
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": package.license,
        "copyrightText": _UNKNOWN,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": package.purl,
            }
        ],
    }


def _relate(subject: str, relationship: str, object_: str) -> dict[str, str]:
    return {
        "spdxElementId": subject,
        "relationshipType": relationship,
        "relatedSpdxElement": object_,
    }


def describe_image(name: str, root: Path = Path("/")) -> dict[str, Any]:
    """Build the document of the image that this runs in; SOURCE_DATE_EPOCH may set its time."""
    packages = find_installed(root)
    version = next((p.version for p in packages if p.name == DISTRIBUTION), "unknown")
    image = Package(name=name, version=version, purl=f"pkg:oci/{name}", license="Apache-2.0")
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    created = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    return build_document(image, packages, "CONTAINS", created)


def describe_wheel() -> dict[str, Any]:
    """Build the document of the wheel; the same lock gives the same document."""
    from tools.lock import select  # images run this file alone

    lock = (ROOT / "requirements.lock").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wheel = _pypi(project["name"], project["version"], project["license"])
    packages = read_pins(*(select(lock, part) for part in _PARTS))
    return build_document(wheel, packages, "DEPENDS_ON", datetime(2026, 1, 1, tzinfo=UTC))


def main() -> None:
    """Write the wheel's document, or print an image's."""
    match sys.argv[1:]:
        case []:
            WHEEL_SBOM.parent.mkdir(exist_ok=True)
            WHEEL_SBOM.write_text(json.dumps(describe_wheel(), indent=1) + "\n")
            print(f"wrote {WHEEL_SBOM.relative_to(ROOT)}")
        case ["image", name]:
            print(json.dumps(describe_image(name), indent=1))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
