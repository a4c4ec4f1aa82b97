"""The command line: rounds in which all take turns, and results as table and picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.checkouts import ROOT, checkout
from benchmarks.dataloading.reporting.ratios import pair_ratios
from benchmarks.dataloading.reporting.results import spread
from benchmarks.dataloading.workloads import sample_options
from benchmarks.records import Beginning, Document, print_results
from benchmarks.start.figure import draw
from benchmarks.start.running import Measured, run_lastmile, run_script
from benchmarks.turns import in_turn
from pipeline_runtime.sample_data import write_sample_data

NAME = "start"
DEFAULT_ROWS = 250_000
DEFAULT_ROUNDS = 5
NEW, OLD, SCRIPT = "lastmile", "old commit", "DataLoader script"
# Targets of one trainer on one machine.
MAX_PLAN_SECONDS = 2.0
MAX_FIRST_STEP_RATIO = 1.4
MAX_REPORT_SECONDS = 2.0  # and to the end of the command
MOMENTS = {
    "plan": "plan shown, s",
    "first_step": "first step, s",
    "report": "report after the last step, s",
    "end": "end after the last step, s",
    "whole": "whole command, s",
}

Arms = Mapping[str, Callable[[], Measured]]


def main() -> int:
    """Measure, print the table, and write the results; return 1 if a target is missed."""
    options = _parse()
    beginning = Beginning()
    root: Path = options.data / f"{NAME}-{options.rows}"
    write_sample_data(root / "data", sample_options(options.rows))
    with checkout(options.old) if options.old else nullcontext() as old:
        arms = {NEW: lambda: run_lastmile(ROOT, root), SCRIPT: lambda: run_script(root)}
        if old is not None:
            arms[OLD] = lambda: run_lastmile(old, root)
        for name, run in arms.items():
            print(f"warming up: {name}", file=sys.stderr)
            run()  # compiles kernels, fills the page cache
        runs = measure(arms, options.rounds)
    results = {
        "version": 1,
        "benchmark": NAME,
        **beginning.describe(NAME, sys.argv[1:]),
        "settings": {"rows": options.rows, "rounds": options.rounds, "old": options.old},
        **summarise(runs),
    }
    print_results(NAME, results, options.output, build_markdown, draw)
    return 0 if all(target["met"] for target in results["targets"]) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--old", help="a commit to compare with, such as main~20")
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS, help="of the table")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS)
    parser.add_argument("--data", type=Path, default=Path("build"), help="folder of the table")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args()


def measure(arms: Arms, rounds: int) -> dict[str, list[Measured]]:
    """Run every arm once per round, another one first each time."""
    runs: dict[str, list[Measured]] = {name: [] for name in arms}
    for index in range(rounds):
        for name in in_turn(list(arms), index):
            runs[name].append(arms[name]())
            print(f"round {index + 1}: {name}: {asdict(runs[name][-1])}", file=sys.stderr)
    return runs


def summarise(runs: Mapping[str, Sequence[Measured]]) -> Document:
    """Return medians, ratios of first steps with their bounds, and the targets."""
    arms = []
    for name, found in runs.items():
        arm: dict[str, Any] = {"name": name}
        for moment in MOMENTS:
            values = [value for run in found if (value := getattr(run, moment)) is not None]
            arm[moment] = spread(values) if values else None
        firsts = [run.first_step for run in found]
        scripts = [run.first_step for run in runs[SCRIPT]]
        arm["first_step_ratio"] = asdict(pair_ratios(firsts, scripts))
        arms.append(arm)
    ours = arms[0]
    reached = (
        ("plan, s", ours["plan"]["median"], MAX_PLAN_SECONDS),
        ("first step, of the script's", ours["first_step_ratio"]["median"], MAX_FIRST_STEP_RATIO),
        ("report, s", ours["report"]["median"], MAX_REPORT_SECONDS),
        ("end, s", ours["end"]["median"], MAX_REPORT_SECONDS),
    )
    targets = [
        {"name": name, "median": value, "most": most, "met": value <= most}
        for name, value, most in reached
    ]
    return {"arms": arms, "targets": targets}


def build_markdown(results: Document) -> str:
    """Return the results as a page."""
    settings = results["settings"]
    heads = ["", *MOMENTS.values(), "first step, of the script's"]
    lines = [
        "# From Enter to the first step and the report",
        "",
        f"`{results['command']}` at {results['commit']}, {results['machine']['cores']} cores; "
        f"medians of {settings['rounds']} rounds [least–most], of ratios [95 % bounds].",
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
    ]
    for arm in results["arms"]:
        cells = [_format_spread(arm[moment]) for moment in MOMENTS]
        ratio = arm["first_step_ratio"]
        bounds = "" if ratio["low"] is None else f" [{ratio['low']:.2f}–{ratio['high']:.2f}]"
        lines.append(f"| {arm['name']} | {' | '.join(cells)} | {ratio['median']:.2f}{bounds} |")
    lines += ["", "| target | median | at most | |", "|---|---|---|---|"]
    for target in results["targets"]:
        word = "met" if target["met"] else "missed"
        lines.append(f"| {target['name']} | {target['median']:.2f} | {target['most']} | {word} |")
    return "\n".join(lines) + "\n"


def _format_spread(found: dict[str, float] | None) -> str:
    return "–" if found is None else "{median:.2f} [{min:.2f}–{max:.2f}]".format(**found)
