"""A script as the only trainer, in this process: what it sees, its rows, and how it may end."""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from experiments import build_experiment
from local_scripts import BATCH_ROWS, GROUP_ROWS, NUM_ROWS, SECONDS, Scripts, write_table

import pipeline_runtime
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import LoaderError, ManifestError
from pipeline_runtime.monitor import MonitorState
from pipeline_runtime.run.training.in_process import LocalTrainer
from pipeline_runtime.run.training.prepare import check_program

# Records the ids of each batch, and saves a checkpoint whenever one is due.
RECORDER = """
import json, sys
from pathlib import Path
from pipeline_runtime import current

folder, fail_at = Path(sys.argv[1]), int(sys.argv[2])
run = current()
state = run.load() or {"step": 0}
with (folder / "steps.jsonl").open("a", buffering=1) as log:
    log.write(json.dumps({"first": state["step"]}) + "\\n")
    loader = run.loader()
    for epoch in run.epochs():
        for batch in loader:
            log.write(json.dumps({"step": run.step, "ids": batch["id"].tolist()}) + "\\n")
            if run.step == fail_at:
                raise ValueError("the user's own mistake")
            if run.checkpoint_due():
                run.save({"step": run.step})
"""


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripts:
    monkeypatch.syspath_prepend(str(tmp_path))
    return write_table(tmp_path)


SEES = """
import json, os, sys, threading
from pathlib import Path
import torch.distributed as dist

def described():
    return {
        "name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path[0],
        "main": vars(sys.modules["__main__"]) is globals(), "cwd": os.getcwd(),
        "variables": {name: os.environ.get(name) for name in (
            "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")},
    }

dist.init_process_group("gloo")
Path(sys.argv[1], "seen.json").write_text(json.dumps({**described(), "rank": dist.get_rank()}))
"""


def test_a_script_sees_what_torchrun_would_give_it(scripts: Scripts) -> None:
    before = (sys.argv, sys.modules["__main__"], list(sys.path), os.environ.get("RANK"))

    ended = scripts.run(SEES, "--flag", "")

    assert (ended.outcome, ended.explanation) == (None, None)
    script = str(scripts.folder / "train.py")
    assert json.loads((scripts.folder / "seen.json").read_text()) == {
        "name": "__main__",
        "file": script,
        "argv": [script, str(scripts.folder), "--flag", ""],
        "path": str(scripts.folder),
        "main": True,
        "cwd": os.getcwd(),
        "variables": {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
        },
        "rank": 0,
    }
    after = (sys.argv, sys.modules["__main__"], list(sys.path), os.environ.get("RANK"))
    assert after == before
    assert not dist.is_initialized()  # as after the end of the script's own process


def test_a_loader_delivers_the_rows_of_each_epoch_once(scripts: Scripts) -> None:
    ended = scripts.run(RECORDER, "0", epochs=2)

    assert (ended.outcome, ended.explanation) == (None, None)
    batches = [record["ids"] for record in scripts.records() if "ids" in record]
    ids = [row for batch in batches for row in batch]
    assert sorted(ids[:NUM_ROWS]) == sorted(ids[NUM_ROWS:]) == list(range(NUM_ROWS))
    assert ids[:NUM_ROWS] != ids[NUM_ROWS:]
    [rank] = ended.state.ranks.values()
    assert (rank.step, rank.samples, rank.is_finished) == (len(batches), 2 * NUM_ROWS, True)
    assert rank.checksum["rows"] == 2 * NUM_ROWS
    assert rank.counts[0].rows == 2 * NUM_ROWS
    assert rank.waited["compute"] > 0


def test_a_script_resumes_where_its_checkpoint_was_saved(scripts: Scripts) -> None:
    settings: dict[str, Any] = {"epochs": 2, "checkpoint": {"everySteps": 4}}
    line = RECORDER[: RECORDER.index("raise")].count("\n") + 1
    failed = scripts.run(RECORDER, "22", **settings)
    assert failed.outcome == "TrainingError"
    assert f'{scripts.folder / "train.py"}", line {line}' in str(failed.state.failure)

    again = RECORDER.replace("run.step == fail_at", "False")
    resumed = scripts.run(again, "22", resume=True, **settings)

    assert (resumed.outcome, resumed.explanation) == (None, None)
    records = scripts.records()
    [second] = [index for index, record in enumerate(records) if "first" in record][1:]
    assert records[second]["first"] == 20
    kept = [record for record in records[1:second] if record["step"] <= 20] + records[second + 1 :]
    assert [record["step"] for record in kept] == list(range(1, len(kept) + 1))
    ids = [row for record in kept for row in record["ids"]]
    assert sorted(ids) == sorted([*range(NUM_ROWS), *range(NUM_ROWS)])
    [rank] = resumed.state.ranks.values()
    assert rank.checksum["rows"] == 2 * NUM_ROWS


ENDS = "from pipeline_runtime import current\nimport sys\n"


@pytest.mark.parametrize(
    ("text", "outcome", "told"),
    [
        ("", None, ""),
        ("sys.exit()", None, ""),
        ("sys.exit(0)", None, ""),
        ("sys.exit(3)", "TrainingError", "train.py exited with 3"),
        ("sys.exit('no GPU')", "TrainingError", "train.py exited with 'no GPU'"),
        ("raise KeyError('x')", "TrainingError", "line 3, in <module>"),
        ("import no_such_module", "TrainingError", "No module named 'no_such_module'"),
        ("current().loader('test')", "TrainingError", "'training' or 'evaluation'"),
        ("current().loader('evaluation')", "LoaderError", "spec.training.evaluation"),
        ("for _ in range(2): list(current().loader())", "LoaderError", "spec.training.epochs"),
        ("x = current().loader(); x.set_epoch(7); list(x)", "LoaderError", "epoch 7"),
    ],
)
def test_the_end_of_a_script_is_the_end_of_the_run(
    text: str, outcome: str | None, told: str, scripts: Scripts
) -> None:
    ended = scripts.run(ENDS + text)
    assert ended.outcome == outcome
    assert told in (ended.state.failure or "")


AHEAD = """
import json, sys
from itertools import islice
from pathlib import Path
from pipeline_runtime import current

folder, fail_at, ahead = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "ahead"
run = current()
state = run.load() or {"step": 0}
loader = run.loader()
iter(loader), iter(loader)  # frameworks make loops that they never use
with (folder / "steps.jsonl").open("a", buffering=1) as log:
    log.write(json.dumps({"first": state["step"], "length": len(loader)}) + "\\n")
    for _ in run.epochs():
        batches = iter(loader)
        taken = list(islice(batches, 1 + ahead))
        while taken:
            batch = taken.pop(0)
            state["step"] += 1
            log.write(json.dumps({"step": state["step"], "ids": batch["id"].tolist()}) + "\\n")
            if state["step"] == fail_at:
                raise ValueError("the user's own mistake")
            if run.checkpoint_due():
                run.save(state, step=state["step"])
            taken += islice(batches, 1)
"""


@pytest.mark.parametrize("ahead", ["ahead", "in step"])
@pytest.mark.parametrize("rows_per_block", [GROUP_ROWS, 30])
def test_a_batch_taken_ahead_is_not_counted_as_trained(
    ahead: str, rows_per_block: int, scripts: Scripts
) -> None:
    settings: dict[str, Any] = {
        "epochs": 2,
        "checkpoint": {"everySteps": 1},
        "shuffle": {"windowRows": rows_per_block},
    }
    failed = scripts.run(AHEAD, "20", ahead, **settings)
    assert failed.outcome == "TrainingError"
    again = AHEAD.replace('state["step"] == fail_at', "False")
    ended = scripts.run(again, "20", ahead, resume=True, **settings)

    assert (ended.outcome, ended.explanation) == (None, None)
    records = scripts.records()
    [second] = [index for index, record in enumerate(records) if "first" in record][1:]
    assert records[second]["first"] == 19
    assert records[0]["length"] == records[second]["length"] == 15
    kept = records[1 : second - 1] + records[second + 1 :]
    assert [record["step"] for record in kept] == list(range(1, 31))
    ids = [row for record in kept for row in record["ids"]]
    assert sorted(ids[:NUM_ROWS]) == sorted(ids[NUM_ROWS:]) == list(range(NUM_ROWS))
    [rank] = ended.state.ranks.values()
    assert (rank.step, rank.checksum["rows"]) == (30, 2 * NUM_ROWS)


@pytest.mark.parametrize("step", [0, 2, 4])
def test_a_checkpoint_of_another_step_is_refused(step: int, scripts: Scripts) -> None:
    text = "batches = iter(current().loader()); [next(batches) for _ in 'abc']\n"
    text += f"current().save({{}}, step={step})"
    ended = scripts.run(ENDS + text)
    assert (ended.outcome is None) == (step == 2)
    if step != 2:
        assert "must be 3" in str(ended.state.failure)


TAKES_SEVERAL = """
import sys
from itertools import islice
from pathlib import Path
from pipeline_runtime import current

run, saved = current(), []
held_out = run.loader("evaluation")
batches = iter(run.loader())
while list(islice(batches, 4)):  # as for accumulated gradients
    list(held_out)
    if run.checkpoint_due():
        saved.append(run.step)
        run.save({})
Path(sys.argv[1], "saved").write_text(str(saved))
"""


def test_a_checkpoint_stays_due_until_it_is_saved(scripts: Scripts) -> None:
    settings = {"checkpoint": {"everySteps": 3}, "evaluation": {"where": "day = 3"}}
    ended = scripts.run(TAKES_SEVERAL, **settings)
    assert (ended.outcome, ended.explanation) == (None, None)
    assert (scripts.folder / "saved").read_text() == "[4, 8, 11]"


STOPS_LATE = """
import sys, time
from itertools import islice
from pathlib import Path
from pipeline_runtime import current

run = current()
batches = iter(run.loader())
while list(islice(batches, 4)):
    Path(sys.argv[1], "stepped").touch()
    time.sleep(0.05)
    if run.checkpoint_due():
        run.save({"step": run.step})
"""


def interrupt(trainer: LocalTrainer, scripts: Scripts) -> MonitorState:
    """Stop a trainer after its first step, and return its last state."""
    while not (scripts.folder / "stepped").exists():
        assert not trainer.wait(0.01)
    trainer.stop()
    assert trainer.wait(SECONDS)
    state = trainer.read()
    assert state.failure_kind == "Interrupted"
    return state


def test_a_script_that_takes_several_batches_saves_before_it_stops(scripts: Scripts) -> None:
    trainer = scripts.start(STOPS_LATE, batchSize=1)
    state = interrupt(trainer, scripts)
    assert (state.ranks[0].checkpoints, state.ranks[0].step % 4) == (1, 0)


STOPS = """
from pathlib import Path
import sys, time
from pipeline_runtime import current

run = current()
try:
    for batch in run.loader():
        Path(sys.argv[1], "stepped").touch()
        time.sleep(0.05)
        if sys.argv[2] == "saves" and run.checkpoint_due():
            run.save({"step": run.step})
except Exception as error:
    if sys.argv[3] == "swallows":
        sys.exit(0)
    raise
"""


@pytest.mark.parametrize(
    ("saves", "swallows"), [("saves", "raises"), ("saves not", "raises"), ("saves", "swallows")]
)
def test_a_script_that_is_asked_to_stop_is_interrupted(
    saves: str, swallows: str, scripts: Scripts
) -> None:
    trainer = scripts.start(STOPS, saves, swallows, epochs=1, batchSize=1)
    state = interrupt(trainer, scripts)
    assert state.ranks[0].checkpoints == (1 if saves == "saves" else 0)


EVALUATES = """
import json, sys
from pathlib import Path
from pipeline_runtime import current

run = current()
held_out = run.loader("evaluation")
next(iter(held_out))  # as Lightning does before it trains
for _ in range(2):
    trained = [row for batch in run.loader() for row in batch["id"].tolist()]
    evaluated = [row for batch in held_out for row in batch["id"].tolist()]
run.report({"eval_rows": len(evaluated)})
Path(sys.argv[1], "rows.json").write_text(json.dumps([sorted(trained), evaluated]))
"""


def test_evaluation_rows_come_in_each_loop(scripts: Scripts) -> None:
    before = set(threading.enumerate())  # a test before this one may have left some
    ended = scripts.run(EVALUATES, epochs=2, evaluation={"where": "day = 3"})
    assert (ended.outcome, ended.explanation) == (None, None)
    trained, evaluated = json.loads((scripts.folder / "rows.json").read_text())
    assert trained == [row for row in range(NUM_ROWS) if row % 4 != 3]
    assert evaluated == [row for row in range(NUM_ROWS) if row % 4 == 3]
    [evaluation] = ended.state.evaluations
    assert evaluation.metrics == {"eval_rows": NUM_ROWS / 4}
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("lastmile-collate"):
            thread.join(SECONDS)
            assert not thread.is_alive()
    assert ended.state.ranks[0].waited["paused"] > 0


LEAVES = """
import json, sys
from pathlib import Path
from pipeline_runtime import current

run = current()
loader = run.loader()
lengths = [len(loader)]
for batch in loader:
    lengths.append(len(loader))
    break
ids = [batch["id"].tolist() for batch in loader]
lengths.append(len(loader))
Path(sys.argv[1], "seen.json").write_text(json.dumps([lengths, ids, run.epoch]))
"""


@pytest.mark.parametrize(("last_batch", "length"), [("Pad", 15), ("Drop", 14)])
def test_a_loop_that_is_left_gives_up_the_rest_of_its_epoch(
    last_batch: str, length: int, scripts: Scripts
) -> None:
    ended = scripts.run(LEAVES, epochs=2, lastBatch=last_batch)
    assert (ended.outcome, ended.explanation) == (None, None)
    lengths, ids, epoch = json.loads((scripts.folder / "seen.json").read_text())
    assert epoch == 1
    assert lengths[:2] == [length, length]
    assert len(ids) == length
    rows = [row for batch in ids for row in batch]
    assert len(rows) == len(set(rows)) == (NUM_ROWS if last_batch == "Pad" else 14 * BATCH_ROWS)


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "must be a file"), ("x = 1\nif x:\n", "train.py:2: "), ("x = '\0'", "train.py")],
)
def test_a_script_that_cannot_run_is_refused_before_anything_starts(
    text: str | None, told: str, scripts: Scripts
) -> None:
    if text is not None:
        (scripts.folder / "train.py").write_text(text)
    training = parse_experiment(build_experiment(training={"script": "train.py"})).spec.training
    with pytest.raises(ManifestError, match=r"spec\.training\.script") as refused:
        check_program(training)
    assert told in str(refused.value)


def test_current_outside_of_a_run_says_how_to_start_one() -> None:
    with pytest.raises(LoaderError, match="lastmile run"):
        pipeline_runtime.current()
