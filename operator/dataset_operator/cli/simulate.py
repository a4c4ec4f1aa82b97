"""`lastmile simulate`: how many data workers a run will need, and what it will cost."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataset_operator.cli.failures import explaining
from dataset_operator.cli.printing import print_table
from pipeline_runtime.config import LoadedManifest, complete_override, load_manifests
from pipeline_runtime.formatting import plain_spaces

if TYPE_CHECKING:
    from dataset_operator.sizing.document import Simulation
    from dataset_operator.sizing.simulated_run import Assumed

DEFAULT_HOURS = 2.0
# A pod's start on a node that is there, its image too; the law's own guess before it has seen one.
DEFAULT_START_SECONDS = 60.0
# What a GPU hour costs in hours of a data worker of four cores: 20 lies in the middle of what is
# paid (from 5 for small GPUs to 50 beside spot nodes).
DEFAULT_GPU_HOUR_PRICE = 20.0
DEFAULT_WORKER_HOUR_PRICE = 1.0
_MAX_HOURS = 48.0
_MAX_FACTOR = 1000.0
PAGE_FILE = "simulation.html"
_LABEL_CHARS = 11

# Writes a page (`pipeline_runtime.report.sheet`) and texts beside it by name; the page's path.
WriteSheet = Callable[[Path, Mapping[str, Any], Mapping[str, str]], Path]


def simulate(
    program: typer.Context,
    filename: Annotated[
        str, typer.Option("--filename", "-f", metavar="FILE", help="The manifest.")
    ],
    profile: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="What `lastmile profile --output` wrote, or its folder."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change a field (repeatable).",
            autocompletion=complete_override,
        ),
    ] = None,
    hours: Annotated[
        float,
        typer.Option(min=0.1, max=_MAX_HOURS, help="Hours of training, were rows always there."),
    ] = DEFAULT_HOURS,
    start_delay: Annotated[
        float,
        typer.Option(
            min=0, max=3600, metavar="SECONDS", help="From a pod's request to its first batch."
        ),
    ] = DEFAULT_START_SECONDS,
    gpu_speed: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=_MAX_FACTOR,
            help="The model's step is so many times as fast as profiled.",
        ),
    ] = 1.0,
    row_cost: Annotated[
        float,
        typer.Option(
            min=0.001, max=_MAX_FACTOR, help="A row is so many times the work as profiled."
        ),
    ] = 1.0,
    gpu_price: Annotated[
        float | None, typer.Option(min=0, help="Of an hour of one GPU, its node included.")
    ] = None,
    worker_price: Annotated[
        float | None, typer.Option(min=0, help="Of an hour of one data worker.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of what varies.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Folder for simulation.json and simulation.html.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Say how many data workers a run will need and what it will cost, by what was profiled.

    Runs the operator's own autoscaler over a simulated run, beside constant numbers of workers.
    Needs no cluster and no table, only what `lastmile profile` measured.
    """
    manifest = _load_one(filename, overrides or [])
    advice = f"make it with: lastmile profile -f {filename} --output build/profile"
    if profile is None:
        raise typer.BadParameter(f"must be given; {advice}", param_hint="--profile")
    if (gpu_price is None) != (worker_price is None):
        raise typer.BadParameter("give both --gpu-price and --worker-price, or none")
    from dataset_operator.sizing.simulated_run import Assumed

    given = {"--gpu-price": gpu_price, "--worker-price": worker_price}
    default = {"--gpu-price": DEFAULT_GPU_HOUR_PRICE, "--worker-price": DEFAULT_WORKER_HOUR_PRICE}
    prices = {name: default[name] if price is None else price for name, price in given.items()}
    factors = {"--gpu-speed": gpu_speed, "--row-cost": row_cost}
    _check_finite({"--hours": hours, "--start-delay": start_delay, **factors, **prices})
    assumed = Assumed(
        hours=hours,
        start_seconds=start_delay,
        gpu_speed=gpu_speed,
        row_cost=row_cost,
        gpu_hour_price=prices["--gpu-price"],
        worker_hour_price=prices["--worker-price"],
        is_priced=gpu_price is not None,
        seed=seed,
    )
    if output:
        output.mkdir(parents=True, exist_ok=True)  # who may not write there learns it at once
    with explaining():
        found = _simulate(manifest, profile, assumed, advice)
    page = _write(program.obj.write_sheet, output, found) if output else None
    if as_json:
        print(found.model_dump_json(by_alias=True, indent=2))
        return
    _print(found)
    if page:
        print(f"\nsimulation: {page}")


def _load_one(filename: str, overrides: list[str]) -> LoadedManifest:
    loaded = load_manifests(filename, overrides=overrides)
    if len(loaded) != 1:
        names = ", ".join(manifest.experiment.metadata.name for manifest in loaded)
        raise typer.BadParameter(f"must hold one experiment, got {len(loaded)}: {names}")
    if loaded[0].experiment.spec.output:
        raise typer.BadParameter(
            "must train a model, but has output: as many data workers write a table as raise its "
            "rows per second, which a profile cannot tell; try it on the cluster",
            param_hint="--filename",
        )
    for warning in loaded[0].warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return loaded[0]


def _check_finite(values: dict[str, float]) -> None:
    """Refuse values that are not finite: Click's ranges let NaN pass."""
    for option, value in values.items():
        if not math.isfinite(value):
            raise typer.BadParameter(f"must be a finite number, got {value}", param_hint=option)


def _simulate(manifest: LoadedManifest, profile: Path, assumed: Assumed, advice: str) -> Simulation:
    from rich.console import Console

    from dataset_operator.sizing.session import simulate_experiment

    console = Console(stderr=True)
    if not console.is_terminal:
        return simulate_experiment(manifest.experiment, profile, assumed, advice)
    with console.status("simulating …") as status:
        return simulate_experiment(
            manifest.experiment,
            profile,
            assumed,
            advice,
            lambda what: status.update(f"simulating: {what}"),
        )


def _write(write_sheet: WriteSheet, directory: Path, found: Simulation) -> Path:
    from dataset_operator.sizing.document import SIMULATION_FILE
    from dataset_operator.sizing.sheet import build_sheet

    document = found.model_dump_json(by_alias=True, indent=2)
    return write_sheet(directory / PAGE_FILE, build_sheet(found), {SIMULATION_FILE: document})


def _print(found: Simulation) -> None:
    from dataset_operator.sizing.sheet import build_header, build_rows, describe

    print(plain_spaces(f"{found.experiment}: {found.headline}\n"))
    print_table([name.upper() for name in build_header(found)], build_rows(found))
    print()
    for label, text in describe(found):
        print(plain_spaces(f"{label + ':':{_LABEL_CHARS}} {text}"))
    if found.advice:
        print("\nWhat to change:")
    for number, advice in enumerate(found.advice, start=1):
        print(plain_spaces(f"  {number}. {advice.field}: {advice.text}"))
    for warning in found.warnings:
        print(plain_spaces(f"warning: {warning}"))
