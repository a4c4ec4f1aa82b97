"""The command `lastmile simulate`: estimate a run's data workers and its cost."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataset_operator.cli.failures import explaining
from dataset_operator.cli.options import SetOption
from dataset_operator.cli.printing import print_table
from pipeline_runtime.config import LoadedManifest, load_manifests
from pipeline_runtime.formatting import plain_spaces

if TYPE_CHECKING:
    from dataset_operator.sizing.document import Simulation
    from dataset_operator.sizing.simulated_run import Assumed

PAGE_FILE = "simulation.html"
DEFAULT_HOURS = 2.0
# Start of a pod on a node that exists and has the image; the autoscaler assumes the same before it
# has observed a start.
DEFAULT_START_SECONDS = 60.0
# Price of a GPU hour in hours of a data worker of four cores: 20 is in the middle of usual prices,
# from 5 for small GPUs to 50 for GPUs beside spot nodes.
DEFAULT_GPU_HOUR_PRICE = 20.0
DEFAULT_WORKER_HOUR_PRICE = 1.0
_MAX_HOURS = 48.0
_MAX_FACTOR = 1000.0
_LABEL_CHARS = 11

# Writes a page (`pipeline_runtime.report.sheet`) and texts beside it by name; the page's path.
WriteSheet = Callable[[Path, Mapping[str, Any], Mapping[str, str]], Path]

FileOption = Annotated[str, typer.Option("--filename", "-f", metavar="FILE", help="The manifest.")]
ProfileOption = Annotated[
    Path | None,
    typer.Option(
        "--profile", metavar="PATH", help="File of `lastmile profile --output`, or its folder."
    ),
]
HoursOption = Annotated[
    float,
    typer.Option(
        "--hours", min=0.1, max=_MAX_HOURS, help="Hours of training, without any wait for rows."
    ),
]
StartOption = Annotated[
    float,
    typer.Option(
        "--start-delay",
        min=0,
        max=3600,
        metavar="SECONDS",
        help="Time from a pod's request to its first batch.",
    ),
]
SpeedOption = Annotated[
    float,
    typer.Option(
        "--gpu-speed",
        min=0.001,
        max=_MAX_FACTOR,
        help="Speed of the model's step, as a multiple of the profiled speed.",
    ),
]
CostOption = Annotated[
    float,
    typer.Option(
        "--row-cost",
        min=0.001,
        max=_MAX_FACTOR,
        help="Work per row, as a multiple of the profiled work.",
    ),
]
GpuPriceOption = Annotated[
    float | None,
    typer.Option("--gpu-price", min=0, help="Price of an hour of one GPU, with its node."),
]
WorkerPriceOption = Annotated[
    float | None,
    typer.Option("--worker-price", min=0, help="Price of an hour of one data worker."),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", help="Folder for simulation.json and simulation.html."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def simulate(
    program: typer.Context,
    filename: FileOption,
    profile: ProfileOption = None,
    overrides: SetOption = None,
    hours: HoursOption = DEFAULT_HOURS,
    start_delay: StartOption = DEFAULT_START_SECONDS,
    gpu_speed: SpeedOption = 1.0,
    row_cost: CostOption = 1.0,
    gpu_price: GpuPriceOption = None,
    worker_price: WorkerPriceOption = None,
    seed: SeedOption = 0,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate how many data workers a run needs and what it costs, from a profile.

    Runs the operator's own autoscaler over a simulated run, beside constant numbers of workers.
    Needs no cluster and no table, only the measurements of `lastmile profile`.
    """
    manifest = _load_one(filename, overrides or [])
    advice = f"make it with: lastmile profile -f {filename} --output build/profile"
    if profile is None:
        raise typer.BadParameter(f"must be given; {advice}", param_hint="--profile")
    if (gpu_price is None) != (worker_price is None):
        raise typer.BadParameter("give both --gpu-price and --worker-price, or none")
    from dataset_operator.sizing.simulated_run import Assumed

    assumed = Assumed(
        hours=hours,
        start_seconds=start_delay,
        gpu_speed=gpu_speed,
        row_cost=row_cost,
        gpu_hour_price=DEFAULT_GPU_HOUR_PRICE if gpu_price is None else gpu_price,
        worker_hour_price=DEFAULT_WORKER_HOUR_PRICE if worker_price is None else worker_price,
        is_priced=gpu_price is not None,
        seed=seed,
    )
    _check_finite(assumed)
    if output:
        output.mkdir(parents=True, exist_ok=True)  # fail before the simulation, not after it
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


def _check_finite(assumed: Assumed) -> None:
    """Refuse values that are not finite: Click's ranges accept NaN."""
    values = {
        "--hours": assumed.hours,
        "--start-delay": assumed.start_seconds,
        "--gpu-speed": assumed.gpu_speed,
        "--row-cost": assumed.row_cost,
        "--gpu-price": assumed.gpu_hour_price,
        "--worker-price": assumed.worker_hour_price,
    }
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
