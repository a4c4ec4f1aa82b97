"""Does loading hide behind training, and training behind loading? `python -m benchmarks.overlap`.

The built-in model trains on one core, by its own loop; readers and collation have another. Readers
are threads of the trainer's process, or a process of their own, with all of Ray on the data's core.
These sessions take turns within a round, each over the same table, each counted in its steady state
in delivered rows a second:

    model            batches frozen in memory, at least 64 different ones   F
    feed, by each    batches taken, nothing done with them                  S, the better of the two
    both, by each    the training as it is                                  R, to be min(F, S)
    model, beside    frozen batches, while a loop of integers keeps the other core busy

Models from small to large are tried first; of them those go on whose S/F comes closest to 0.5 (the
model waits for data), 1 and 2 (data wait for the model). Bars are judged of the readers that
`feed: auto` settles on, by its own rule: threads while the trainer waits much for rows. What the
model loses beside a loop that needs no memory is the machine's: cores that are not of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import matplotlib
import ray
import torch
from matplotlib.axes import Axes
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
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.actor_readers import ActorReaders, start_pool
from pipeline_runtime.feed.base import FeedSource, Waited
from pipeline_runtime.feed.batching import batching_of
from pipeline_runtime.feed.maker import Stream
from pipeline_runtime.feed.switching import MAX_WAITED_SHARE
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
THREADS, PROCESSES = "threads", "processes"
READERS: Final = (THREADS, PROCESSES)
FROZEN: Final = "frozen"  # batches in memory
TARGETS: Final = (0.5, 1.0, 2.0)  # S/F
BARS: Final = {0.5: 0.95, 1.0: 0.90, 2.0: 0.95}  # of min(F, S)
DEFAULT_ROWS: Final = 2_000_000
DEFAULT_ROUNDS: Final = 7
NUM_FROZEN: Final = 64
_TRIED_STEPS: Final = 12  # of each model that might go on
# The feed's threads begin with the first batches, on the core that their maker is on then.
_PIN_AFTER: Final = 3
_NEIGHBOUR_SECONDS: Final = 0.2  # until a neighbour is at work
# Of the picture: a level of work each; readers each, in Okabe and Ito's colours.
_MARKERS: Final = ("o", "s")
_COLOURS: Final = ("#D55E00", "#0072B2")
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
    _model(4, -2, 4, sequence=False),
    _model(20, -2, 16, sequence=False),
    _model(4, 0, 16, sequence=False),
    _model(20, 0, 64, sequence=False),
    _model(20, 4, 128, sequence=False),
    *(_model(20, 8, hidden, sequence=False) for hidden in (128, 256, 512)),
    *(_model(20, 8, hidden, sequence=True) for hidden in (64, 128, 256, 512, 768, 1024, 1536)),
)


class Session(TrainContext):
    """A context that notes when batches were asked for; its thread ends on the trainer's core."""

    def __init__(
        self, spec: Training, plan: Plan, readers: FeedSource, cores: tuple[int, int]
    ) -> None:
        stream = _open_stream(spec, plan, readers)
        super().__init__(spec, plan.training.output_schema, torch.device("cpu"), wire_alone(stream))
        stream.agree = agree_alone  # no checkpoint falls due
        self.frozen: Sequence[Batch] = ()
        self.steps: int | None = None  # of frozen batches; None: as long as there are batches
        self.taken: list[tuple[float, int]] = []  # when, and how many rows had come by then
        self._waited = stream.waited
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

    @property
    def waited_share(self) -> float:
        """Of the trainer's time: waiting for rows to be made."""
        return self._waited.production / self.taken[-1][0]


def _piece_rows(plan: Plan) -> int:
    rows = plan.training
    return rows_per_piece(rows.scan.units, rows.shuffle, rows.max_rows_per_block)


def _open_stream(spec: Training, plan: Plan, readers: FeedSource) -> BatchStream:
    """What `training.worker` opens for the only rank of a machine."""
    rows = plan.training
    groups = plan_groups(
        rows.scan.units,
        seed=rows.seed,
        epoch=0,
        shuffle=rows.shuffle,
        piece_rows=_piece_rows(plan),
    )
    waited = Waited()
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


def _open_later(readers: FeedSource, groups: Sequence[Any], waited: Waited) -> Iterator[Any]:
    """The feed, opened as the first batch is asked for, on the core that this thread has then."""
    yield from readers.open("training", 0, groups, in_order=False).pieces(waited)


@contextlib.contextmanager
def opened_readers(workload: Workload, data_core: int) -> Iterator[dict[str, FeedSource]]:
    """Of both kinds; for those in a process Ray starts, all of it on the data's core."""

    def fail(error: LastmileError) -> None:  # travels by value
        raise error

    experiment = build_experiment(workload)
    plan = build_plan(experiment, workload.root)
    stream = Stream(
        plan=plan.training,
        piece_rows=_piece_rows(plan),
        batching=batching_of(plan.delivery, plan.training, experiment.spec.training),
    )
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {data_core})
    # Two processors by name, one of which is the trainer's.
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        pool, held = start_pool({"training": stream}, fail, labels=None, num_trainers=1)
        os.sched_setaffinity(0, everywhere)
        yield {
            THREADS: ThreadReaders(streams={"training": stream}, ranks_here=1),
            PROCESSES: ActorReaders(pool=pool, streams=held, piece_rows=stream.piece_rows),
        }
    finally:
        ray.shutdown()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a session does.

    Attributes:
        source: of its batches: `FROZEN`, or readers as threads or processes.
        trains: whether a model is trained on them.
        has_neighbour: whether another process keeps the data's core busy.
    """

    source: str
    trains: bool
    has_neighbour: bool = False

    def __str__(self) -> str:
        if self.source == FROZEN:
            return "model, beside" if self.has_neighbour else "model"
        return f"{'both' if self.trains else 'feed'}, {self.source}"


MODEL: Final = Kind(source=FROZEN, trains=True)
FEEDS: Final = {readers: Kind(source=readers, trains=False) for readers in READERS}
BOTH: Final = {readers: Kind(source=readers, trains=True) for readers in READERS}
BESIDE: Final = Kind(source=FROZEN, trains=True, has_neighbour=True)
KINDS: Final = (MODEL, *FEEDS.values(), *BOTH.values(), BESIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One level of work on one table."""

    workload: Workload
    readers: Mapping[str, FeedSource]
    cores: tuple[int, int]  # the trainer's, the data's
    frozen: Sequence[Batch] = ()

    def run(self, kind: Kind, model: Mapping[str, Any], steps: int | None = None) -> Session:
        """One session of a kind."""
        session = self._open(kind, model)
        if kind.source == FROZEN:
            session.frozen, session.steps = self.frozen, steps
        try:
            with _neighbour(self.cores[1]) if kind.has_neighbour else contextlib.nullcontext():
                if kind.trains:
                    train_loop(session)
                else:
                    for _ in session.batches():
                        pass
        finally:
            os.sched_setaffinity(0, set(self.cores))
        return session

    def freeze(self) -> list[Batch]:
        """The first batches of an epoch, all different."""
        session = self._open(FEEDS[THREADS], MODELS[0])
        batches = itertools.islice(session.batches(), NUM_FROZEN)
        frozen = [{name: tensor.clone() for name, tensor in batch.items()} for batch in batches]
        os.sched_setaffinity(0, set(self.cores))
        return frozen

    def _open(self, kind: Kind, model: Mapping[str, Any]) -> Session:
        experiment = build_experiment(self.workload)
        plan = build_plan(experiment, self.workload.root)
        training = experiment.spec.training.model_copy(update={"config": dict(model)})
        readers = self.readers[THREADS if kind.source == FROZEN else kind.source]
        return Session(training, plan, readers, self.cores)


@contextlib.contextmanager
def _neighbour(core: int) -> Iterator[None]:
    """A process that keeps a core busy, and uses next to no memory."""
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nn = 0\nwhile True: n = (n + 1) % 1000"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(_NEIGHBOUR_SECONDS)
        yield
    finally:
        process.kill()
        process.wait()


def measure(workload: Workload, rounds: int, cores: tuple[int, int]) -> Document:
    """All rounds of one level of work."""
    torch.set_num_threads(1)
    with opened_readers(workload, cores[1]) as readers:
        bench = Bench(workload=workload, readers=readers, cores=cores)
        return _measure(replace(bench, frozen=bench.freeze()), rounds)


def _measure(bench: Bench, rounds: int) -> Document:
    level = bench.workload.level
    steps = len(bench.run(FEEDS[PROCESSES], MODELS[0]).taken)  # both warm up
    bench.run(FEEDS[THREADS], MODELS[0])
    feed_rate = bench.run(FEEDS[THREADS], MODELS[0]).rows_per_second
    tried = [bench.run(MODEL, model, _TRIED_STEPS).rows_per_second for model in MODELS]
    _say(f"{level}: feed {feed_rate:,.0f} rows/s; models {[round(r) for r in tried]}")
    chosen = {
        t: min(range(len(MODELS)), key=lambda i: _miss(feed_rate / tried[i], t)) for t in TARGETS
    }
    found: dict[float, dict[Kind, list[Session]]] = {
        target: {kind: [] for kind in KINDS} for target in TARGETS
    }
    for index in range(rounds):
        for target in TARGETS:
            first = index % len(KINDS)
            for kind in KINDS[first:] + KINDS[:first]:
                session = bench.run(kind, MODELS[chosen[target]], steps)
                found[target][kind].append(session)
            rates = {str(k): round(s[-1].rows_per_second) for k, s in found[target].items()}
            _say(f"{level} {target}: {rates}")
    return {
        "work": level,
        "batches": steps,
        "points": [_describe(t, MODELS[chosen[t]], kinds) for t, kinds in found.items()],
    }


def _miss(ratio: float, target: float) -> float:
    return abs(math.log(ratio / target))


def _describe(target: float, model: Document, found: Mapping[Kind, Sequence[Session]]) -> Document:
    rates = {kind: [s.rows_per_second for s in sessions] for kind, sessions in found.items()}
    feed = [max(pair) for pair in zip(*(rates[kind] for kind in FEEDS.values()), strict=True)]
    slower = [min(pair) for pair in zip(rates[MODEL], feed, strict=True)]
    waited = {readers: [s.waited_share for s in found[BOTH[readers]]] for readers in READERS}
    by_readers = {
        readers: _describe_ratios(rates[BOTH[readers]], slower)
        | {"waited_share": spread(waited[readers])}
        for readers in READERS
    }
    waits_little = max(map(statistics.median, waited.values())) <= MAX_WAITED_SHARE
    settles = PROCESSES if waits_little else THREADS
    low = by_readers[settles]["ratio_low"]
    return {
        "wanted": target,
        "feed_to_model": spread(s / f for s, f in zip(feed, rates[MODEL], strict=True)),
        "model": {**model, "dense": len(model["dense"]), "categorical": len(model["categorical"])},
        "rows_per_second": {str(kind): spread(values) for kind, values in rates.items()},
        "readers": by_readers,
        "beside": _describe_ratios(rates[BESIDE], rates[MODEL]),
        "auto": settles,
        "at_least": BARS[target],
        "met": None if low is None else low >= BARS[target],
    }


def _describe_ratios(both: Sequence[float], slower: Sequence[float]) -> Document:
    found = pair_ratios(both, slower)
    return {
        "ratio_median": rounded(found.median),
        "ratio_low": None if found.low is None else rounded(found.low),
        "ratio_high": None if found.high is None else rounded(found.high),
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
        "Thousand rows a second; in brackets the bounds, each at 95 %. `auto`: the readers that "
        "`feed: auto` settles on, of which bars are judged.",
        "",
        "| work | S/F wanted | S/F | F | S, threads | S, processes | R/min(F, S), threads | "
        "processes | auto | asked | met | model beside a busy core, of F |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for level in results["levels"]:
        for point in level["points"]:
            rates = point["rows_per_second"]
            cells = [level["work"], f"{point['wanted']:g}"]
            cells.append(f"{point['feed_to_model']['median']:.2f}")
            kinds = (MODEL, *FEEDS.values())
            cells += [f"{rates[str(kind)]['median'] / 1000:,.0f}" for kind in kinds]
            cells += [_bounded(point["readers"][readers]) for readers in READERS]
            met = {None: "unknown", True: "yes", False: "**no**"}[point["met"]]
            cells += [point["auto"], f"≥ {point['at_least']:g}", met, _bounded(point["beside"])]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _bounded(ratios: Document) -> str:
    low, high = ratios["ratio_low"], ratios["ratio_high"]
    return f"{ratios['ratio_median']:.2f}" + ("" if low is None else f" [{low:.2f}–{high:.2f}]")


def draw(results: Document, path: Path) -> None:
    """Share of min(F, S) by S/F, as SVG; equal results give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for level, marker in zip(results["levels"], _MARKERS, strict=False):
            for readers, colour in zip(READERS, _COLOURS, strict=True):
                _draw_points(axes, level, readers, fmt=marker, color=colour)
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


def _draw_points(axes: Axes, level: Document, readers: str, **style: Any) -> None:
    found = [point["readers"][readers] for point in level["points"]]
    shares = [ratios["ratio_median"] for ratios in found]
    lows = [s - (r["ratio_low"] or s) for s, r in zip(shares, found, strict=True)]
    highs = [(r["ratio_high"] or s) - s for s, r in zip(shares, found, strict=True)]
    places = [point["feed_to_model"]["median"] for point in level["points"]]
    name = f"{level['work']} work, {readers}"
    axes.errorbar(places, shares, yerr=[lows, highs], capsize=2, label=name, **style)


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
        "version": 2,
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
