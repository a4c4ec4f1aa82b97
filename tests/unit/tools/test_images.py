"""Names of images, package sources of their builds, and contents of archives."""

import hashlib
import io
import json
import tarfile
from collections.abc import Collection
from pathlib import Path

import pytest

from tools.buildah import NAME, Layout, build_pip_configuration, parse_pip_settings
from tools.images import Recipe

DOCKERFILE = "ARG BASE\nFROM ${BASE} AS wheel\nCOPY a.lock src /src/\nCOPY --from=wheel /x /y\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A small image of one lock and one folder."""
    (tmp_path / "images" / "small").mkdir(parents=True)
    (tmp_path / "images" / "small" / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "src" / "__pycache__").mkdir(parents=True)
    (tmp_path / "src" / "code.py").write_text("1")
    (tmp_path / "a.lock").write_text("x==1")
    return Recipe(name="small", root=tmp_path)


@pytest.mark.parametrize("path", ["a.lock", "src/code.py", "src/new.py", "images/small/Dockerfile"])
def test_a_change_of_what_an_image_is_made_of_changes_its_name(recipe: Recipe, path: str) -> None:
    before = recipe.key()

    with (recipe.root / path).open("a") as file:
        file.write("#")

    assert recipe.key() != before


@pytest.mark.parametrize("path", ["README", "src/__pycache__/code.pyc"])
def test_a_change_of_anything_else_does_not(recipe: Recipe, path: str) -> None:
    before = recipe.key()

    (recipe.root / path).write_text("#")

    assert recipe.key() == before


def test_another_base_gives_an_image_another_name(recipe: Recipe) -> None:
    assert recipe.key("base:1") != recipe.key("base:2")


def test_the_build_takes_from_the_machines_index_and_trusts_its_certificates() -> None:
    listed = (
        "global.cert='/etc/ssl/of-this-machine.crt'\n"
        "global.index-url='https://first.example/simple'\n"
        "install.find-links='/opt/wheels'\n"
        ":env:.index-url='https://second.example/simple'\n"
    )

    written = build_pip_configuration(parse_pip_settings(listed))

    assert written.splitlines() == [
        "[global]",
        "disable-pip-version-check = true",
        "index-url = https://second.example/simple",  # a variable wins over a file
        "cert = /run/secrets/ca.crt",
    ]


def write_blob(layout: Layout, content: bytes) -> dict[str, object]:
    """Write a blob as skopeo would, and return its description."""
    digest = hashlib.sha256(content).hexdigest()
    path = layout.folder / "blobs" / "sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Two images, `old` and `new`, that share one layer and have one each of their own."""
    made = Layout(folder=tmp_path / "layout")
    shared, manifests = write_blob(made, b"shared"), []
    for name in ("old", "new"):
        own, config = write_blob(made, name.encode()), write_blob(made, f"config {name}".encode())
        manifest = json.dumps({"config": config, "layers": [shared, own]}).encode()
        manifests.append({**write_blob(made, manifest), "annotations": {NAME: name}})
    (made.folder / "index.json").write_text(json.dumps({"manifests": manifests}))
    (made.folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return made


def contents(layout: Layout, name: str, known: Collection[str] = ()) -> dict[str, bytes]:
    """Return the files of an image's archive by their names."""
    archive = io.BytesIO()
    layout.write_archive(name, archive, known)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as opened:
        members = {member.name: opened.extractfile(member) for member in opened.getmembers()}
        return {name: file.read() for name, file in members.items() if file is not None}


def test_what_the_reader_knows_is_left_out(layout: Layout) -> None:
    shared = "sha256:" + hashlib.sha256(b"shared").hexdigest()

    files = contents(layout, "new", known=[shared])

    assert b"shared" not in files.values()
    assert b"new" in files.values()
    assert f"blobs/{layout.digest('new').replace(':', '/')}" in files


def test_an_archive_holds_its_own_image_and_no_other(layout: Layout) -> None:
    files = contents(layout, "new")
    blobs = [content for name, content in files.items() if name.startswith("blobs/")]
    named = [m["annotations"][NAME] for m in json.loads(files["index.json"])["manifests"]]
    assert named == ["new"]
    assert {b"shared", b"new", b"config new"} < {*blobs}
    assert not {b"old", b"config old"} & {*blobs}
    assert "oci-layout" in files


def test_removing_an_image_leaves_the_layers_of_the_others(layout: Layout) -> None:
    before = contents(layout, "new")

    layout.remove("old")

    kept = [path.read_bytes() for path in (layout.folder / "blobs" / "sha256").iterdir()]
    assert layout.names() == ["new"]
    assert contents(layout, "new") == before
    assert not {b"old", b"config old"} & {*kept}
