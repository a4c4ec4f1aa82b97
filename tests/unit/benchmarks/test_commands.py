"""Every claim about speed names the command that measures it, and each of these commands exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = dict(re.findall(r"^(bench[\w-]*):[^\n]*\n\t([^\n]*)", MAKEFILE, re.MULTILINE))
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
MAKE = re.compile(r'make (bench[\w-]*)(?: ARGS=(?:"([^"]*)"|(\S+)))?')
MODULE = re.compile(r"-m (benchmarks[\w.]*)")


def module_files(module: str) -> list[Path]:
    """Return the sources of a benchmark, with those of the harness, which has the shared
    options."""
    path = ROOT / module.replace(".", "/")
    files = list(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return [*files, *(ROOT / "benchmarks" / "harness").glob("*.py")]


def commands(page: Path) -> list[tuple[str, str]]:
    """Return the targets that a page names, and their options."""
    return [(target, a or b) for target, a, b in MAKE.findall(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_named_command_exists_with_its_options(page: Path) -> None:
    for target, options in commands(page):
        assert target in TARGETS, f"{page}: no target {target}"
        modules = MODULE.findall(TARGETS[target])
        sources = "".join(path.read_text() for m in modules for path in module_files(m))
        for option in re.findall(r"--[\w-]+", options) if modules else ():
            assert f'"{option}"' in sources, f"{page}: make {target} has no option {option}"
    for module in MODULE.findall(page.read_text()):
        assert module_files(module)[0].exists(), f"{page}: no module {module}"


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_runs_a_benchmark_that_exists(target: str) -> None:
    for module in MODULE.findall(TARGETS[target]):
        assert module_files(module)[0].exists()


def test_every_section_of_results_names_its_command() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        # A section may leave the command to the page on the method, which it links to.
        assert "make bench" in body or "docs/benchmarks.md" in body, f"{title} names no command"


def test_every_benchmark_with_results_has_a_command_in_the_list() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert f"results/{path.stem}" in text, f"{path.name} has no command"
