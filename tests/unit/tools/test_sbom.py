"""Bills of materials of an image and of the wheel, in the form that SPDX asks for."""

import json
import re
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder

from tools.lock import select
from tools.sbom import (
    DISTRIBUTION,
    ROOT,
    WHEEL_SBOM,
    Package,
    build_document,
    describe_image,
    describe_wheel,
    find_installed,
    read_pins,
)

STATUS = """Package: base-files
Status: install ok installed
Architecture: amd64
Version: 12.4+deb12u5
Description: Debian base system
 miscellaneous files

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: libc6
Status: install ok installed
Architecture: amd64
Version: 1:2.36-9
"""
SITE = "opt/lastmile/lib/python3.11/site-packages"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system with Debian packages and Python distributions."""
    files = {
        "var/lib/dpkg/status": STATUS,
        "etc/os-release": 'ID=debian\nVERSION_CODENAME="bookworm"\n',
        f"{SITE}/lastmile_experiments-0.1.0.dist-info/METADATA": f"Name: {DISTRIBUTION}\n"
        "Version: 0.1.0\n"
        "License-Expression: Apache-2.0\n",
        f"{SITE}/Odd_Name-2.0+cpu.dist-info/METADATA": "Name: Odd_Name\nVersion: 2.0+cpu\n"
        "License: do what you like\n",
        f"{SITE}/own-1.dist-info/METADATA": "Name: own\nVersion: 1\n"
        "License-Expression: MIT AND LicenseRef-Own\n",
        f"{SITE}/old.egg-info/PKG-INFO": "Name: old\nVersion: 3\n",
        f"{SITE}/empty.dist-info/RECORD": "",
        "proc/1/root/x.dist-info/METADATA": "Name: not-here\nVersion: 1\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def purls(document: dict[str, Any]) -> list[str]:
    return [p["externalRefs"][0]["referenceLocator"] for p in document["packages"]]


def check_spdx(document: dict[str, Any]) -> None:
    """Check what SPDX 2.3 makes mandatory, and that every relationship has its two ends."""
    assert document["spdxVersion"] == "SPDX-2.3"
    assert document["dataLicense"] == "CC0-1.0"
    datetime.strptime(document["creationInfo"]["created"], "%Y-%m-%dT%H:%M:%SZ")
    assert document["creationInfo"]["creators"][0].startswith("Tool: ")
    assert re.fullmatch(r"https://\S+[0-9a-f]{64}", document["documentNamespace"])
    identifiers = [package["SPDXID"] for package in document["packages"]]
    assert len(identifiers) == len(set(identifiers))
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", each) for each in identifiers)
    own = {each["licenseId"] for each in document["hasExtractedLicensingInfos"]}
    named = " ".join(package["licenseDeclared"] for package in document["packages"])
    assert own == set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", named))
    mandatory = {"SPDXID", "name", "downloadLocation"}
    assert all(mandatory <= package.keys() for package in document["packages"])
    known = {"SPDXRef-DOCUMENT", *identifiers}
    ends = [(r["spdxElementId"], r["relatedSpdxElement"]) for r in document["relationships"]]
    assert {end for pair in ends for end in pair} == known


def test_an_image_lists_debians_packages_and_python_distributions(root: Path) -> None:
    document = describe_image("lastmile-small", root)
    check_spdx(document)
    assert document["name"] == "lastmile-small-0.1.0"
    image, *rest = purls(document)
    assert image == "pkg:oci/lastmile-small"
    assert rest[:2] == [
        "pkg:deb/debian/base-files@12.4%2Bdeb12u5?arch=amd64&distro=bookworm",
        "pkg:pypi/lastmile-experiments@0.1.0",
    ]
    assert rest[2] == "pkg:deb/debian/libc6@1%3A2.36-9?arch=amd64&distro=bookworm"
    assert rest[3:6] == ["pkg:pypi/odd-name@2.0%2Bcpu", "pkg:pypi/old@3", "pkg:pypi/own@1"]
    assert rest[6].startswith("pkg:generic/python@")


def test_only_an_expression_of_spdx_is_a_licence(root: Path) -> None:
    found = {package.name: package.license for package in find_installed(root)}
    assert found[DISTRIBUTION] == "Apache-2.0"
    assert found["odd-name"] == found["base-files"] == "NOASSERTION"


def test_the_time_of_a_document_can_be_set(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert describe_image("x", root) == describe_image("x", root)
    assert describe_image("x", root)["creationInfo"]["created"] == "1970-01-01T00:00:00Z"


def test_other_packages_have_another_namespace() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    of, one, two = (Package(name=n, version="1", purl=f"pkg:pypi/{n}@1") for n in ("a", "b", "c"))
    spaces = {build_document(of, [p], "CONTAINS", now)["documentNamespace"] for p in (one, two)}
    assert len(spaces) == 2


def test_the_wheels_document_is_that_of_the_lock() -> None:
    document = describe_wheel()
    check_spdx(document)
    assert json.loads(WHEEL_SBOM.read_text()) == document, "run `make sbom`"
    pinned = {
        package.purl
        for package in read_pins(select((ROOT / "requirements.lock").read_text(), "runtime"))
    }
    assert pinned < set(purls(document))
    assert any(purl.startswith("pkg:pypi/torch@") for purl in purls(document))
    assert not any("pytest" in purl for purl in purls(document))


def test_the_wheel_carries_its_document(tmp_path: Path) -> None:
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".spdx.json")]
        sbom = r"lastmile_experiments-[^/]+\.dist-info/sboms/lastmile\.spdx\.json"
        assert re.fullmatch(sbom, name)
        assert archive.read(name) == WHEEL_SBOM.read_bytes()
