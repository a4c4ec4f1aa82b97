"""Does loading hide behind training, and training behind loading? `python -m benchmarks.overlap`.

The built-in model trains on one core, by its own loop; readers and collation have another. Three
sessions take turns within a round, each over the same table, each counted in its steady state:

    model   batches frozen in memory, at least 64 different ones      F, delivered rows a second
    feed    batches taken, nothing done with them                     S
    both    the training as it is                                     R, to be min(F, S)

Models from small to large are tried first; of them those go on whose S/F comes closest to 0.5 (the
model waits for data), 1 and 2 (data wait for the model).
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib
import torch
from matplotlib.figure import Figure

from benchmarks import records
from benchmarks.dataloading.bars import MAX_LOAD
from benchmarks.dataloading.comparisons import rounded
from benchmarks.dataloading.epochs import find_steady
from benchmarks.dataloading.ratios import pair_ratios
from benchmarks.dataloading.results import spread
from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import DENSE, WHOLE_CATEGORIES, Workload, build_experiment
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.batches import ROW_WEIGHT, Batch
from pipeline_runtime.config import Training
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.batching import batching_of
from pipeline_runtime.feed.maker import Stream
from pipeline_runtime.feed.thread_readers import ThreadReaders
from pipeline_runtime.plan import Plan, build_plan, plan_groups, rows_per_piece
from pipeline_runtime.profiling.replay import wire_alone
from pipeline_runtime.training.context import TrainContext
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.ranking import train_loop
from pipeline_runtime.training.stream import BatchStream, Cutting, agree_alone

Document = records.Document
NAME: Final = "overlap"
LEVELS: Final = ("none", "heavy")
MODEL, FEED, BOTH = "model", "feed", "both"
TARGETS: Final = (0.5, 1.0, 2.0)  # S/F
BARS: Final = {0.5: 0.95, 1.0: 0.90, 2.0: 0.95}  # of min(F, S)
DEFAULT_ROWS: Final = 2_000_000
DEFAULT_ROUNDS: Final = 7
NUM_FROZEN: Final = 64
_TRIED_STEPS: Final = 12  # of each model that might go on
# The feed's threads begin with the first batches, on the core that their maker is on then.
_PIN_AFTER: Final = 3
_SEQUENCE: Final = {"column": "user_sequence", "target": "item_id"}


def _model(dense: int, categories: int, hidden: int, *, sequence: bool) -> Document:
    return {
        "dense": list(DENSE[:dense]),
        "categorical": ["item_id", "position", *WHOLE_CATEGORIES][: 2 + categories],
        "sequences": [_SEQUENCE] if sequence else [],
        "hidden": [hidden, max(1, hidden // 2)],
    }


# By their cost, from what a laptop would train to what a GPU is bought for.
MODELS: Final = (
    _model(4, 0, 16, sequence=False),
    _model(20, 0, 64, sequence=False),
    _model(20, 4, 128, sequence=False),
    *(_model(20, 8, hidden, sequence=False) for hidden in (128, 256, 512)),
    *(_model(20, 8, hidden, sequence=True) for hidden in (64, 128, 256, 512, 768, 1024, 1536)),
)


class Session(TrainContext):
    """A context that notes when batches were asked for; its thread ends on the trainer's core."""

    def __init__(self, spec: Training, plan: Plan, cores: tuple[int, int]) -> None:
        wiring = wire_alone(_open_stream(spec, plan))
        super().__init__(spec, plan.training.output_schema, torch.device("cpu"), wiring)
        wiring.training.agree = agree_alone  # no checkpoint falls due
        self.frozen: Sequence[Batch] = ()
        self.steps: int | None = None  # of frozen batches; None: as long as there are batches
        self.taken: list[tuple[float, int]] = []  # when, and how many rows had come by then
        self._cores = cores

    def epochs(self) -> Iterator[int]:
        """One."""
        yield 0

    def batches(self) -> Iterator[Batch]:
        """The epoch's batches, or the frozen ones over and over."""
        trainer, data = self._cores
        os.sched_setaffinity(0, {data})
        source = itertools.cycle(self.frozen) if self.frozen else super().batches()
        started, rows = time.perf_counter(), 0
        for index, batch in enumerate(itertools.islice(source, self.steps)):
            if index == _PIN_AFTER:
                os.sched_setaffinity(0, {trainer})
            rows += len(batch[ROW_WEIGHT])
            self.taken.append((time.perf_counter() - started, rows))
            yield batch

    @property
    def rows_per_second(self) -> float:
        """Delivered rows a second, in the middle 80 % of the rows."""
        steady = find_steady(self.taken, self.taken[-1][0])
        return steady.rows / steady.seconds


def _open_stream(spec: Training, plan: Plan) -> BatchStream:
    """What `training.worker` opens for the only rank of a machine."""
    rows = plan.training
    piece_rows = rows_per_piece(rows.scan.units, rows.shuffle, rows.max_rows_per_block)
    groups = plan_groups(
        rows.scan.units, seed=rows.seed, epoch=0, shuffle=rows.shuffle, piece_rows=piece_rows
    )
    batching = batching_of(plan.delivery, rows, spec)
    stream = Stream(plan=rows, piece_rows=piece_rows, batching=batching)
    waited = Waited()
    readers = ThreadReaders(streams={"training": stream}, ranks_here=1)
    return BatchStream(
        pieces=_open_later(readers, groups, waited),
        groups=groups,
        cutting=Cutting(
            batch_size=spec.batch_size,
            last_batch=spec.last_batch,
            weight_column=spec.weight_column,
        ),
        position=Position(),
        waited=waited,
    )


def _open_later(readers: ThreadReaders, groups: Sequence[Any], waited: Waited) -> Iterator[Any]:
    """The feed, opened as the first batch is asked for, on the core that this thread has then."""
    yield from readers.open("training", 0, groups, in_order=False).pieces(waited)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One level of work on one table."""

    workload: Workload
    cores: tuple[int, int]  # the trainer's, the data's
    frozen: Sequence[Batch] = ()

    def run(self, kind: str, model: Mapping[str, Any], steps: int | None = None) -> Session:
        """One session of a kind."""
        session = self._open(model)
        if kind != FEED and kind != BOTH:
            session.frozen, session.steps = self.frozen, steps
        try:
            if kind == FEED:
                for _ in session.batches():
                    pass
            else:
                train_loop(session)
        finally:
            os.sched_setaffinity(0, set(self.cores))
        return session

    def freeze(self) -> list[Batch]:
        """The first batches of an epoch, all different."""
        batches = itertools.islice(self._open(MODELS[0]).batches(), NUM_FROZEN)
        frozen = [{name: tensor.clone() for name, tensor in batch.items()} for batch in batches]
        os.sched_setaffinity(0, set(self.cores))
        return frozen

    def _open(self, model: Mapping[str, Any]) -> Session:
        experiment = build_experiment(self.workload)
        plan = build_plan(experiment, self.workload.root)
        training = experiment.spec.training.model_copy(update={"config": dict(model)})
        return Session(training, plan, self.cores)


def measure(workload: Workload, rounds: int, cores: tuple[int, int]) -> Document:
    """All rounds of one level of work."""
    torch.set_num_threads(1)
    bench = Bench(workload=workload, cores=cores)
    bench = Bench(workload=workload, cores=cores, frozen=bench.freeze())
    feed = bench.run(FEED, MODELS[0])  # warms up, too
    steps = len(feed.taken)
    feed_rate = bench.run(FEED, MODELS[0]).rows_per_second
    tried = [bench.run(MODEL, model, _TRIED_STEPS).rows_per_second for model in MODELS]
    _say(f"{workload.level}: feed {feed_rate:,.0f} rows/s; models {[round(r) for r in tried]}")
    chosen = {
        t: min(range(len(MODELS)), key=lambda i: _miss(feed_rate / tried[i], t)) for t in TARGETS
    }
    rates: dict[float, dict[str, list[float]]] = {
        target: {kind: [] for kind in (MODEL, FEED, BOTH)} for target in TARGETS
    }
    for index in range(rounds):
        for target in TARGETS:
            kinds = (MODEL, FEED, BOTH)
            for kind in kinds[index % 3 :] + kinds[: index % 3]:
                session = bench.run(kind, MODELS[chosen[target]], steps)
                rates[target][kind].append(session.rows_per_second)
            _say(f"{workload.level} {target}: {[round(r[-1]) for r in rates[target].values()]}")
    return {
        "work": workload.level,
        "batches": steps,
        "points": [_describe(t, MODELS[chosen[t]], found) for t, found in rates.items()],
    }


def _miss(ratio: float, target: float) -> float:
    return abs(math.log(ratio / target))


def _describe(target: float, model: Document, rates: Mapping[str, Sequence[float]]) -> Document:
    pairs = list(zip(rates[MODEL], rates[FEED], strict=True))
    found = pair_ratios(rates[BOTH], [min(pair) for pair in pairs])
    return {
        "wanted": target,
        "feed_to_model": spread(feed / model_rate for model_rate, feed in pairs),
        "model": {**model, "dense": len(model["dense"]), "categorical": len(model["categorical"])},
        "rows_per_second": {kind: spread(values) for kind, values in rates.items()},
        "ratio_median": rounded(found.median),
        "ratio_low": None if found.low is None else rounded(found.low),
        "ratio_high": None if found.high is None else rounded(found.high),
        "at_least": BARS[target],
        "met": None if found.low is None else found.low >= BARS[target],
    }


def build_markdown(results: Document) -> str:
    """The page."""
    why = results["indicative"]
    lines = [
        "# Training while loading",
        "",
        f"Made by `{results['command']}` at commit {results['commit']}; do not edit. How it is "
        "measured: [docs/benchmarks.md](../../docs/benchmarks.md).",
        "",
        f"{results['rows']:,} input rows, {results['rounds']} interleaved rounds, "
        f"{results['machine']['processor']}, {results['machine']['cores']} cores.",
        "",
        *([f"**Indicative, no measurement of bars: {'; '.join(why)}.**", ""] if why else []),
        "| work | S/F wanted | S/F | F, thousand rows/s | S | both | of min(F, S) | asked | met |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for level in results["levels"]:
        for point in level["points"]:
            rates = [
                f"{point['rows_per_second'][k]['median'] / 1000:.1f}" for k in (MODEL, FEED, BOTH)
            ]
            low = (
                ""
                if point["ratio_low"] is None
                else f" [{point['ratio_low']:.2f}–{point['ratio_high']:.2f}]"
            )
            met = {None: "unknown", True: "yes", False: "**no**"}[point["met"]]
            cells = [
                level["work"],
                f"{point['wanted']:g}",
                f"{point['feed_to_model']['median']:.2f}",
            ]
            cells += [*rates, f"{point['ratio_median']:.2f}{low}", f"≥ {point['at_least']:g}", met]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(results: Document, path: Path) -> None:
    """Share of min(F, S) by S/F, as SVG; equal results give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for level in results["levels"]:
            points = level["points"]
            shares = [p["ratio_median"] for p in points]
            axes.errorbar(
                [p["feed_to_model"]["median"] for p in points],
                shares,
                yerr=[
                    [s - (p["ratio_low"] or s) for s, p in zip(shares, points, strict=True)],
                    [(p["ratio_high"] or s) - s for s, p in zip(shares, points, strict=True)],
                ],
                fmt="o",
                capsize=2,
                label=f"{level['work']} work",
            )
        axes.plot(list(BARS), list(BARS.values()), "k_", markersize=14, label="asked")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        kind = "indicative: " if results["indicative"] else ""
        axes.set_title(f"{kind}{results['rows']:,} rows, {results['rounds']} interleaved rounds")
        axes.set_xlabel("S/F: the feed's rate over the model's")
        axes.set_ylabel("rate of both over the slower of them")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> int:
    """Measure, print the table, and write JSON, table and picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS, help="input rows")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS)
    parser.add_argument("--work", nargs="+", choices=LEVELS, default=LEVELS)
    parser.add_argument("--data", type=Path, default=Path("build"), help="folder of the table")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("error: the trainer and the data need a core each, got one", file=sys.stderr)
        return 1
    beginning = records.Beginning()
    root = make_table(options.data, options.rows).roots["flat"]
    keep_freed_memory()  # as `lastmile` does: read as a process loads Arrow, so in another one
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        levels = [
            process.submit(
                measure, Workload(level=level, root=root), options.rounds, (cores[0], cores[1])
            ).result()
            for level in options.work
        ]
    results = {
        "version": 1,
        "benchmark": NAME,
        "indicative": _explain_indicative(options, beginning.load),
        **beginning.describe(NAME, sys.argv[1:]),
        "rows": options.rows,
        "rounds": options.rounds,
        "levels": levels,
    }
    print(
        records.write_results(
            NAME, results, options.output, build_markdown=build_markdown, draw=draw
        )
    )
    return 0


def _explain_indicative(options: argparse.Namespace, load: float) -> list[str]:
    """Why no bar can be said to be met or missed; nothing if one can."""
    reasons = []
    if options.rows < DEFAULT_ROWS:
        reasons.append(f"{options.rows:,} rows of {DEFAULT_ROWS:,}")
    if options.rounds < DEFAULT_ROUNDS:
        reasons.append(f"{options.rounds} rounds of {DEFAULT_ROUNDS}")
    if load > MAX_LOAD:
        reasons.append(f"other work ran beside it: load average {load} at the start")
    return reasons


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
