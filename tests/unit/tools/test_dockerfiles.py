"""The Dockerfiles, the locks that they install and .dockerignore agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest

from tools.images import NAMES
from tools.images.inputs import Recipe

ROOT = Path(__file__).parents[3]
RECIPES = [Recipe(name=name) for name in NAMES]
LOCKS = ("requirements-build.lock", "requirements-operator.lock", "requirements-runtime.lock")
PINNED_BASE = re.compile(r"docker\.io/library/python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}")
AN_INDEX = re.compile(r"https?:|--(extra-)?index|--find-links|--trusted-host| @ ")


def pins(lock: str) -> set[str]:
    """Return the pins of a lock, such as `ray==2.60.0`."""
    return set(re.findall(r"^[a-z0-9._-]+==[^ \\]+", (ROOT / lock).read_text(), re.MULTILINE))


def pinned_names(lock: str) -> set[str]:
    """Return the names of what a lock pins."""
    return {pin.partition("==")[0] for pin in pins(lock)}


def is_in_context(path: str) -> bool:
    """Tell whether .dockerignore, which lets in what it names by `!`, lets `path` in."""
    return f"!{path}" in (ROOT / ".dockerignore").read_text().splitlines()


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_what_a_dockerfile_copies_exists_and_is_in_the_build_context(recipe: Recipe) -> None:
    sources = recipe.sources()

    assert f"requirements-{recipe.name}.lock" in sources
    assert [name for name in sources if not (ROOT / name).exists()] == []
    assert [name for name in sources if not is_in_context(name)] == []


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_a_base_is_pinned_by_its_digest(recipe: Recipe) -> None:
    bases = re.findall(r"^ARG BASE=(\S+)$", recipe.text, re.MULTILINE)
    stages = re.findall(r"^FROM (\S+)", recipe.text, re.MULTILINE)
    named = re.findall(r"^FROM \S+ AS (\S+)$", recipe.text, re.MULTILINE)

    assert len(bases) == 1
    assert PINNED_BASE.fullmatch(bases[0])
    assert {*stages} <= {"${BASE}", *named}


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_the_default_version_is_the_projects(recipe: Recipe) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert f"\nARG VERSION={version}\n" in recipe.text


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_an_image_runs_as_a_user_that_is_not_root(recipe: Recipe) -> None:
    users = re.findall(r"^USER (\S+)$", recipe.text, re.MULTILINE)

    assert users == ["1000:1000"]


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_a_change_of_the_code_leaves_the_layers_of_the_dependencies(recipe: Recipe) -> None:
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM )", recipe.text, re.M | re.S))
    sources = re.findall(r"^COPY ((?:pipeline_runtime|operator)\b.*)$", stages["wheel"], re.M)
    last = recipe.text.rpartition("\nFROM ")[2]

    assert len(sources) == 2
    assert last.startswith("dependencies\nCOPY --from=wheel ")  # all that is rebuilt of the image
    for name in ("dependencies", "tools"):
        assert not re.search(r"^COPY (pipeline_runtime|operator|pyproject)", stages[name], re.M)
        assert "--require-hashes" in stages[name]


@pytest.mark.parametrize("lock", LOCKS)
def test_an_images_lock_is_a_part_of_the_whole_one(lock: str) -> None:
    assert pins(lock) - pins("requirements.lock") == set()


@pytest.mark.parametrize("lock", LOCKS)
def test_an_images_lock_has_a_hash_for_every_pin_and_names_no_index(lock: str) -> None:
    text = (ROOT / lock).read_text()
    entries = re.split(r"\n(?=\S)", text)

    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert AN_INDEX.findall(text) == []


def test_the_operators_lock_has_neither_torch_nor_ray() -> None:
    names = pinned_names("requirements-operator.lock")

    assert "kopf" in names
    assert (
        names & {"torch", "ray", "pyarrow", "numpy", *pinned_names("requirements-torch.lock")}
        == set()
    )


def test_the_runtimes_lock_has_ray_and_nothing_that_only_developers_need() -> None:
    names = pinned_names("requirements-runtime.lock")

    assert "ray" in names
    assert names & {"pytest", "mypy", "ruff", "kopf"} == set()
