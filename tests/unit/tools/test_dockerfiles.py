"""The Dockerfiles, the parts of the lock that they install and .dockerignore agree."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tools.images import NAMES, Recipe
from tools.lock import select, split

ROOT = Path(__file__).parents[3]
RECIPES = [Recipe(name=name) for name in NAMES]
# Nothing here builds the image of vLLM, whose packages are not in the lock.
EVERY = [*RECIPES, Recipe(name="llm")]
LOCK = (ROOT / "requirements.lock").read_text()
PARTS = ("build", "operator", "runtime", "torch")
PINNED_BASE = re.compile(r"docker\.io/library/python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}")


def pins(part: str) -> dict[str, str]:
    """Return the packages of a part of the lock, with versions and hashes."""
    entries = re.findall(r"^([a-z0-9._-]+)==((?:.*\\\n)*.*)$", select(LOCK, part), re.MULTILINE)
    return dict(entries)


def is_in_context(path: str) -> bool:
    """Tell whether .dockerignore, which lets in what it names by `!`, lets `path` in."""
    return f"!{path}" in (ROOT / ".dockerignore").read_text().splitlines()


@pytest.mark.parametrize("recipe", EVERY, ids=lambda recipe: recipe.name)
def test_what_a_dockerfile_copies_exists_and_is_in_the_build_context(recipe: Recipe) -> None:
    sources = recipe.sources()

    assert "requirements.lock" in sources
    assert [name for name in sources if not (ROOT / name).exists()] == []
    assert [name for name in sources if not is_in_context(name)] == []


@pytest.mark.parametrize("recipe", EVERY, ids=lambda recipe: recipe.name)
def test_a_base_is_pinned_by_its_digest(recipe: Recipe) -> None:
    bases = re.findall(r"^ARG BASE=(\S+)$", recipe.text, re.MULTILINE)
    stages = re.findall(r"^FROM (\S+)", recipe.text, re.MULTILINE)
    named = re.findall(r"^FROM \S+ AS (\S+)$", recipe.text, re.MULTILINE)

    assert len(bases) == 1
    assert PINNED_BASE.fullmatch(bases[0])
    assert {*stages} <= {"${BASE}", *named}


@pytest.mark.parametrize("recipe", EVERY, ids=lambda recipe: recipe.name)
def test_the_default_version_is_the_projects(recipe: Recipe) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert f"\nARG VERSION={version}\n" in recipe.text


@pytest.mark.parametrize("recipe", EVERY, ids=lambda recipe: recipe.name)
def test_an_image_runs_as_a_user_that_is_not_root(recipe: Recipe) -> None:
    users = re.findall(r"^USER (\S+)$", recipe.text, re.MULTILINE)

    assert users == ["1000:1000"]


def test_all_images_have_one_base() -> None:
    bases = {name for each in EVERY for name in re.findall(r"^ARG BASE=.*$", each.text, re.M)}
    assert len(bases) == 1


def test_the_image_of_vllm_takes_rays_version_from_the_lock(tmp_path: Path) -> None:
    [command] = re.findall(r" && (ray=.*?>>/src/llm\.in)$", EVERY[-1].text, re.M | re.S)
    for name in ("requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    subprocess.run(["sh", "-c", command.replace("/src", str(tmp_path))], check=True)
    lines = (tmp_path / "llm.in").read_text().splitlines()
    version = pins("runtime")["ray"].split()[0]
    assert lines[0] == f"ray[data,default,train,llm]=={version}"
    assert {"transformers>=5,<6", "pyarrow>=21", "typer>=0.20"} <= {*lines}


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


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_lock_has_its_pins_with_all_hashes(part: str) -> None:
    whole = {name: pin for name, pin, _ in split(LOCK)}
    assert pins(part).items() <= whole.items()
    assert all("--hash=sha256:" in pin for pin in pins(part).values())


def test_an_unknown_part_of_the_lock_is_refused() -> None:
    with pytest.raises(SystemExit, match="runtimes"):
        select(LOCK, "runtimes")


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_a_part_that_cannot_be_derived_ends_the_build(recipe: Recipe, tmp_path: Path) -> None:
    [loop] = re.findall(r"^RUN (.*for part in (?:.*\\\n)*.*)$", recipe.text, re.MULTILINE)

    def run(failing: str) -> int:
        script = f"python3() {{ [ $3 != {failing} ]; }}; {loop.replace('/src/', f'{tmp_path}/')}"
        return subprocess.run(["sh", "-c", script], check=False).returncode

    assert [run("build") > 0, run("operator") + run("runtime") > 0, run("nothing")] == [1, 1, 0]


def test_every_pin_of_the_lock_says_what_needs_it() -> None:
    assert len(split(LOCK)) == len(re.findall(r"^[a-z0-9._-]+==", LOCK, re.MULTILINE))


def test_the_operators_part_has_neither_torch_nor_ray() -> None:
    assert "kopf" in pins("operator")
    assert pins("operator").keys() & {"torch", "sympy", "ray", "pyarrow", "numpy"} == set()


def test_the_runtimes_part_has_ray_and_nothing_that_only_developers_need() -> None:
    assert pins("runtime").keys() >= {"ray", "pydantic", "typer"}
    assert pins("runtime").keys() & {"torch", "pytest", "mypy", "ruff", "kopf"} == set()


def test_torchs_part_has_torch_and_what_it_needs() -> None:
    assert pins("torch").keys() >= {"torch", "sympy", "mpmath"}
    assert pins("torch").keys() & {"ray", "pytest"} == set()


def test_a_part_holds_what_its_packages_need_and_no_more() -> None:
    lock = "".join(
        f"{name}==1 \\\n    --hash=sha256:0\n    # via {parents}\n"
        for name, parents in {
            "a": "-r operator.in",
            "b": "a, c",
            "c": "-r dev.in",
            "sympy": "torch",
            "torch": "a",
        }.items()
    )
    assert select(lock, "operator") == (
        "a==1 \\\n    --hash=sha256:0\nb==1 \\\n    --hash=sha256:0\n"
    )
    assert [line[0] for line in select(lock, "torch").splitlines()[::2]] == ["s", "t"]
