"""`lastmile simulate` over what `lastmile profile` writes: its numbers follow from those."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_told
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from dataset_operator.sizing.document import Simulation
from dataset_operator.sizing.measured import load_profile
from dataset_operator.sizing.session import simulate_experiment
from dataset_operator.sizing.simulated_run import Assumed
from pipeline_runtime.cli import main
from pipeline_runtime.config import DatasetExperiment, hash_parts, parse_experiment
from pipeline_runtime.pipeline import Pipeline
from pipeline_runtime.profiling.document import Profile
from pipeline_runtime.profiling.need import plan_need
from pipeline_runtime.profiling.page import write_profile
from pipeline_runtime.profiling.session import ProfileOptions, profile_experiment
from pipeline_runtime.profiling.testing import build_sample_profile

SHORT = ("--hours", "0.1")
READERS = 4  # of a data worker whose spec names no CPUs
DOCUMENT: dict[str, Any] = {
    "apiVersion": "experiments.lastmile.dev/v1alpha1",
    "kind": "DatasetExperiment",
    "metadata": {"name": "ranking"},
    "spec": {"dataset": {"parquet": {"uri": "impressions/"}}},
}


def build_experiment(**spec: Any) -> DatasetExperiment:
    return parse_experiment({**DOCUMENT, "spec": DOCUMENT["spec"] | spec})


def build_profile(need: float, **changes: Any) -> Profile:
    """A profile by which so many data workers are needed, all busy."""
    made, experiment = build_sample_profile(), build_experiment()
    intake = made.trainer.intake
    rate = intake.median / (need * READERS)
    reader = made.need.reader.model_copy(
        update={"median": rate, "low": 0.95 * rate, "high": 1.1 * rate}
    )
    return made.model_copy(
        update={
            "spec_hashes": hash_parts(experiment),
            "need": plan_need(experiment.spec, intake, reader),
            **changes,
        }
    )


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command on a manifest, in a folder with a profile; its code, output and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(json.dumps(DOCUMENT))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lastmile", "simulate", "-f", "m.yaml", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        ended = capsys.readouterr()
        return int(caught.value.code or 0), ended.out, ended.err

    return run


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def simulated(call: Call) -> Callable[..., Simulation]:
    """The document of a simulation by a need; arguments are the command's."""

    def run(need: float, *arguments: str) -> Simulation:
        write_profile(Path("profile"), build_profile(need))
        code, out, err = call("--profile", "profile", "--json", "--hours", "0.5", *arguments)
        assert (code, err) == (0, "")
        return Simulation.model_validate_json(out)

    return run


Simulated = Callable[..., Simulation]


def test_the_autoscaler_settles_at_the_need_with_headroom(simulated: Simulated) -> None:
    found = simulated(6.2)
    ours = found.outcome("autoscaler")
    assert found.need.workers == pytest.approx(6.2)
    assert found.need.replicas == 7  # 6.2 · 1.075 is 6.7
    assert (ours.workers_settled, ours.replicas) == (7, None)
    assert ours.workers_max <= 8
    assert ours.settled_idle_ratio < 0.02
    assert "7 data workers" in found.headline
    assert found.outcome("advised").replicas == 7  # 6.2 · 1.1 is 6.8


def test_constants_wait_and_cost_what_arithmetic_says(simulated: Simulated) -> None:
    found = simulated(6.2, "--set", "trainers.replicas=2", "--set", "dataWorkers.maxReplicas=30")
    assert found.need.workers == pytest.approx(12.4)  # twice the trainers
    samples = 1800 * found.need.demand
    for outcome in found.policies[1:]:
        assert outcome.replicas is not None
        supplied = min(1.0, outcome.replicas / 12.4)
        assert outcome.idle_ratio == pytest.approx(1 - supplied, abs=0.02)
        assert outcome.workers_mean == pytest.approx(outcome.replicas, rel=0.02)
        assert outcome.worker_hours == pytest.approx(outcome.workers_mean * outcome.hours)
        assert outcome.gpu_hours == pytest.approx(2 * outcome.hours)
        assert outcome.cost == pytest.approx(20 * outcome.gpu_hours + outcome.worker_hours)
        a_million = 1e6 * outcome.cost / outcome.samples
        assert outcome.cost_per_million == pytest.approx(a_million)
        if outcome.is_complete:
            assert outcome.samples == pytest.approx(samples, rel=0.01)
            assert outcome.hours == pytest.approx(0.5 / supplied, rel=0.03)
    least = found.outcome("minReplicas")
    assert not least.is_complete  # it takes 12.4 times as long, and is given up after eight times
    assert least.hours == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("epochs", [1, 30_000], ids=["shorter than simulated", "longer"])
def test_the_whole_run_takes_what_its_samples_take(simulated: Simulated, epochs: int) -> None:
    found = simulated(6.2, *SHORT, "--set", f"training.epochs={epochs}")
    sample = build_sample_profile().sample
    assert found.samples == round(epochs * sample.rows_left * sample.samples / sample.rows)
    advised = found.outcome("advised")
    assert advised.whole_run is not None
    hours = found.samples / found.need.demand / 3600
    if epochs > 1:  # what is shorter than a period of the simulation is only known to be
        assert hours > 2
        assert advised.whole_run.hours == pytest.approx(hours, rel=0.03)
        assert advised.whole_run.worker_hours == pytest.approx(7 * hours, rel=0.03)
    else:
        assert advised.whole_run.hours < 15 / 3600
        assert any("autoscaler" in warning for warning in found.warnings)


def test_prices_and_hours_are_the_persons(simulated: Simulated) -> None:
    found = simulated(2.0, *SHORT, "--gpu-price", "3.5", "--worker-price", "0.25")
    ours = found.outcome("autoscaler")
    assert ours.cost == pytest.approx(3.5 * ours.gpu_hours + 0.25 * ours.worker_hours)
    assert found.assumed.is_priced


@pytest.mark.parametrize(
    ("arguments", "need"),
    [
        pytest.param(["--row-cost", "1.5"], 4.5, id="rows are dearer"),
        # The model is 88 % of the intake's time; the rest stays.
        pytest.param(["--gpu-speed", "2"], 3 / (0.12 + 0.88 / 2), id="the model is faster"),
        pytest.param(["--set", "trainers.gpusPerReplica=2"], 6.0, id="more GPUs"),
        pytest.param(["--set", "dataWorkers.resources.limits.cpu=8"], 1.5, id="more readers"),
        pytest.param(["--set", "dataWorkers.resources.requests.cpu=1500m"], 6.0, id="rounded up"),
    ],
)
def test_what_if(simulated: Simulated, arguments: list[str], need: float) -> None:
    assert simulated(3.0, *SHORT, *arguments).need.workers == pytest.approx(need)


@pytest.mark.parametrize(
    ("need", "bounds", "headline", "advice"),
    [
        (
            6.2,
            (1, 4),
            "… maxReplicas … 4 … 7 … 35.5",
            "7",
        ),
        (0.4, (1, 9), "… minReplicas … 1 … 2.5", ""),
        (2.1, (5, 9), "… minReplicas … 5 … 3", "3"),
        (2.1, (3, 3), "… minReplicas … maxReplicas … 3", ""),
        (6.2, (3, 3), "… 3 … 7 … 51.7", "7"),
        (2.1, (9, 9), "… 9 … 3", "3"),
    ],
    ids=["max reached", "model binds", "min too high", "fixed", "fixed too low", "fixed too high"],
)
def test_a_sentence_says_what_it_comes_to(
    simulated: Simulated, need: float, bounds: tuple[int, int], headline: str, advice: str
) -> None:
    least, most = bounds
    override = f"dataWorkers={{minReplicas: {least}, maxReplicas: {most}}}"
    found = simulated(need, "--set", override)
    assert_told(found.headline, headline)
    texts = [change.text for change in found.advice]
    assert [advice in text for text in texts] == ([True] if advice else [])
    assert least <= found.outcome("autoscaler").workers_max <= most


def test_the_specs_autoscaling_block_rules(simulated: Simulated) -> None:
    found = simulated(6.2, "--set", "autoscaling.scaleUp.selectPolicy=Disabled")
    assert_told(found.headline, "… 1 … 7 data workers")
    assert "autoscaling.scaleUp.selectPolicy" in found.advice[0].text


def test_slow_pods_cost_gpu_time(simulated: Simulated) -> None:
    soon, late = (simulated(2.9, "--start-delay", seconds) for seconds in ("5", "240"))
    ours, theirs = soon.outcome("autoscaler"), late.outcome("autoscaler")
    assert theirs.idle_ratio > ours.idle_ratio + 0.02
    assert theirs.workers_settled == ours.workers_settled


def test_trainers_without_gpus_are_called_so(call: Call) -> None:
    write_profile(Path("profile"), build_profile(6.2))
    few = ("--set", "trainers.gpusPerReplica=0", "--set", "dataWorkers.maxReplicas=4")
    _, out, _ = call("--profile", "profile", *SHORT, *few)
    assert "GPU" not in out.replace("--gpu-price", "")
    assert "TRAINER IDLE" in out
    assert "trainers" in out


def test_the_same_seed_gives_the_same_document(simulated: Simulated) -> None:
    first, second = simulated(3.3, *SHORT, "--seed", "7"), simulated(3.3, *SHORT, "--seed", "7")
    assert first == second
    assert simulated(3.3, *SHORT, "--seed", "8").curves != first.curves


ASSUMED = Assumed(
    hours=0.7,
    start_seconds=30.0,
    gpu_speed=1.0,
    row_cost=1.0,
    gpu_hour_price=20.0,
    worker_hour_price=1.0,
    is_priced=False,
    seed=0,
)


@given(need=st.floats(0.05, 9.0), least=st.integers(1, 6), seed=st.integers(0, 1000))
@settings(max_examples=examples(4), deadline=None)
def test_whatever_is_needed_the_law_settles_there(
    tmp_path_factory: pytest.TempPathFactory, need: float, least: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("profile")
    write_profile(folder, build_profile(need))
    spec = build_experiment(dataWorkers={"minReplicas": least, "maxReplicas": 40})
    assumed = Assumed(**{**{f: getattr(ASSUMED, f) for f in Assumed.__slots__}, "seed": seed})
    found = simulate_experiment(spec, folder, assumed, "")
    settled = found.outcome("autoscaler").workers_settled
    assert settled is not None
    assert abs(settled - max(least, math.ceil(need * 1.075))) <= 1


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--row-cost", "1000"], id="workers are hopeless"),
        pytest.param(["--gpu-speed", "0.001", "--row-cost", "0.001"], id="steps take minutes"),
    ],
)
def test_extremes_are_simulated_too(call: Call, arguments: list[str]) -> None:
    made = build_profile(9.0)
    slow = made.trainer.model_copy(update={"batch_rows": 100_000_000})
    write_profile(Path("profile"), made.model_copy(update={"trainer": slow}))
    most = ("--set", "dataWorkers.maxReplicas=2")
    code, out, err = call("--profile", "profile", *SHORT, *arguments, *most, "--output", "out")
    assert (code, err) == (0, "")
    assert "ranking: " in out
    assert "nan" not in out
    assert "inf" not in out


# --- what is printed and written ------------------------------------------------------------------


def test_what_is_written_is_what_is_printed(call: Call, tmp_path: Path) -> None:
    write_profile(Path("profile"), build_profile(6.2))
    arguments = ("--profile", "profile/profile.json", "--hours", "0.2", "--output", "out/sim")
    code, out, _ = call(*arguments, "--json")
    folder = tmp_path / "out" / "sim"
    assert code == 0
    assert (folder / "simulation.json").read_text(encoding="utf-8") == out
    page = (folder / "simulation.html").read_text(encoding="utf-8")
    assert json.loads(out)["headline"][1:] in page
    assert page.count("<svg") == 2
    _, text, _ = call(*arguments)
    assert "simulation: out/sim/simulation.html" in text
    for said in ("ranking: ", "POLICY", "autoscaler", "1 (minReplicas)", "7 (advised)"):
        assert said in text


def test_constants_that_are_the_same_number_are_one_row(call: Call) -> None:
    write_profile(Path("profile"), build_profile(0.5))
    same = ("--set", "dataWorkers.maxReplicas=1")
    _, out, _ = call("--profile", "profile", *SHORT, *same)
    assert "1 (minReplicas, advised, maxReplicas)" in out


@pytest.mark.slow
def test_a_real_profile_is_simulated(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "simulated_loop.py").write_text(
        "def steps(ctx):\n"
        "    for _ in ctx.epochs():\n"
        "        for batch in ctx.batches():\n"
        "            ctx.report({})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"x": list(range(4000))}), tmp_path / "t" / "a.parquet")
    entrypoint = "simulated_loop:steps"
    made = Pipeline.read_parquet("t/").experiment("real", entrypoint=entrypoint, batch_size=100)
    options = ProfileOptions(seconds=0.2, rows=4000, storage_root=str(tmp_path))
    profile = profile_experiment(made, options)
    write_profile(Path("profile"), profile)
    (tmp_path / "m.yaml").write_text(json.dumps(made.model_dump(by_alias=True, mode="json")))
    code, out, err = call("--profile", "profile", *SHORT, "--json")
    assert (code, err) == (0, "")
    found = Simulation.model_validate_json(out)
    need = profile.need
    workers = need.demand / (need.reader.median * need.readers_per_worker)
    assert found.need.workers == pytest.approx(workers)
    assert found.outcome("advised").replicas == need.workers
    assert found.samples == 4000


# --- what is refused ------------------------------------------------------------------------------


def test_without_a_profile_it_says_how_to_make_one(call: Call) -> None:
    code, _, err = call()
    assert code == 2
    assert "lastmile profile -f m.yaml --output build/profile" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, "'p.json'", id="missing"),
        pytest.param("apiVersion: v1", "--profile … JSON … 'p.json'", id="a manifest"),
        pytest.param("[1]", "`lastmile profile` … 'p.json'", id="a list"),
        pytest.param('{"version": 1}', "trainer", id="another document"),
        pytest.param('{"version": 2, "trainer": {}}', "p.json: version: … 1 … 2", id="version"),
        pytest.param('{"version": 1, "trainer": {}}', "p.json: need: ", id="half a profile"),
    ],
)
def test_what_is_no_profile_is_one_error(call: Call, text: str | None, message: str) -> None:
    if text is not None:
        Path("p.json").write_text(text)
    code, out, err = call("--profile", "p.json")
    assert (code, out) == (1, "")
    assert_told(err, f"… {message}")
    assert "lastmile profile -f m.yaml" in err


@pytest.mark.parametrize("value", [0, -3, "NaN", "Infinity", "many"])
def test_impossible_figures_are_named(call: Call, value: object) -> None:
    document = json.loads(build_profile(6.2).model_dump_json(by_alias=True))
    document["need"]["reader"]["median"] = value
    Path("p.json").write_text(json.dumps(document))
    code, _, err = call("--profile", "p.json")
    assert code == 1
    assert_told(err, f"… p.json: need.reader.median: … {value!r}")


def test_a_profile_of_another_experiment_is_refused(call: Call) -> None:
    other = build_profile(6.2, experiment=build_sample_profile().experiment.model_copy())
    hashes = other.spec_hashes | {"pipeline": "0" * 16}
    renamed = other.experiment.model_copy(update={"name": "ads"})
    write_profile(
        Path("profile"), other.model_copy(update={"spec_hashes": hashes, "experiment": renamed})
    )
    code, _, err = call("--profile", "profile")
    assert code == 1
    assert_told(err, "… ranking … 'ads'")


@pytest.mark.parametrize("is_old", [True, False], ids=["written before hashes were", "renamed"])
def test_a_profile_of_the_same_work_is_taken(call: Call, is_old: bool) -> None:
    made = build_profile(0.5)
    name = made.experiment.model_copy(update={"name": "ranking" if is_old else "ads"})
    hashes = {} if is_old else made.spec_hashes
    write_profile(
        Path("profile"), made.model_copy(update={"spec_hashes": hashes, "experiment": name})
    )
    assert call("--profile", "profile", *SHORT)[0] == 0


def test_what_was_changed_since_it_was_profiled_is_said(simulated: Simulated) -> None:
    changed = ("training.batchSize=512", "dataset.where=day > 3")
    found = simulated(0.5, *SHORT, *(part for field in changed for part in ("--set", field)))
    [warning] = [text for text in found.warnings if "profiled" in text]
    assert_told(warning, "… spec.dataset … spec.training")


def test_a_model_that_was_profiled_on_a_cpu_is_said(call: Call) -> None:
    made = build_profile(0.5)
    on_cpu = made.trainer.model_copy(update={"device": "cpu"})
    write_profile(Path("profile"), made.model_copy(update={"trainer": on_cpu}))
    for arguments, is_told in (((), True), (("--gpu-speed", "30"), False)):
        _, out, _ = call("--profile", "profile", *SHORT, *arguments)
        assert ("--gpu-speed" in out) is is_told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hours", "0"], "--hours"),
        (["--hours", "nan"], "--hours"),
        (["--gpu-speed", "0"], "--gpu-speed"),
        (["--row-cost", "-1"], "--row-cost"),
        (["--start-delay", "-1"], "--start-delay"),
        (["--gpu-price", "inf", "--worker-price", "1"], "--gpu-price … inf"),
        (["--gpu-price", "3"], "--gpu-price … --worker-price"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_impossible_options_are_refused(call: Call, arguments: list[str], message: str) -> None:
    write_profile(Path("profile"), build_profile(6.2))
    code, out, err = call("--profile", "profile", *arguments)
    assert (code, out) == (2, "")
    assert_told(err, f"… {message}")


def test_one_experiment_at_a_time(call: Call) -> None:
    two = [json.dumps({**DOCUMENT, "metadata": {"name": name}}) for name in ("a", "b")]
    Path("m.yaml").write_text("\n---\n".join(two))
    code, _, err = call("--profile", "profile")
    assert code == 2
    assert_told(err, "… 2 … a, b")


def test_a_table_has_no_trainers_to_simulate(call: Call) -> None:
    spec = {
        name: part for name, part in DOCUMENT["spec"].items() if name in ("dataset", "pipeline")
    }
    spec["output"] = {"parquet": {"uri": "kept/"}}
    Path("m.yaml").write_text(json.dumps({**DOCUMENT, "spec": spec}))
    write_profile(Path("profile"), build_profile(6.2))
    code, out, err = call("--profile", "profile")
    assert (code, out) == (2, "")
    assert_told(err, "… output")


def test_it_needs_nothing_of_a_cluster() -> None:
    program = """
import sys
sys.modules["kopf"] = sys.modules["kubernetes"] = None
sys.argv = ["lastmile", "--help"]
from pipeline_runtime.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert " simulate " in done.stdout
    assert " describe " not in done.stdout


def test_the_profile_that_is_read_is_the_one_that_is_written(tmp_path: Path) -> None:
    made = build_profile(6.2)
    write_profile(tmp_path, made)
    read = load_profile(tmp_path, "")
    assert read.need.reader.median == made.need.reader.median
    assert read.trainer.intake.high == made.trainer.intake.high
    assert [step.share for step in read.steps] == [step.share for step in made.steps]
