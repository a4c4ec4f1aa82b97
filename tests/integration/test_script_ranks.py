"""Scripts with DDP and FSDP on two ranks, in processes of their own: rows, models, a resume."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from experiments import build_experiment
from script_ranks import DDP_SCRIPT, FSDP_SCRIPT, run_attempts

NUM_ROWS, WORLD_SIZE, FAIL_AT, SAVED_AT = 1500, 2, 6, 4
Record = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_both(DDP_SCRIPT.replace("lr=0.01", "lr=1e-9"), tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each attempt has processes of its own, since FSDP keeps the groups of the first one."""
    return run_both(FSDP_SCRIPT, tmp_path_factory.mktemp("sharded"), apart=True)


def run_both(script: str, folder: Path, *, apart: bool = False) -> Path:
    """Run both ranks, which fail at a step and resume from the checkpoint before it."""
    (folder / "table").mkdir()
    items = pa.FixedSizeListArray.from_arrays(pa.array(range(4 * NUM_ROWS)), 4)
    table = pa.table({"id": range(NUM_ROWS), "items": items})
    pq.write_table(table, folder / "table" / "0.parquet", row_group_size=140)  # 11 groups
    (folder / "train.py").write_text(script)
    training = {
        "script": "train.py",
        "args": ["--folder", str(folder), "--fail-at", str(FAIL_AT)],
        "batchSize": 70,
        "checkpoint": {"everySteps": SAVED_AT},
    }
    document = build_experiment(
        dataset={"parquet": {"uri": "table/"}, "rowKey": ["id"]},
        training=training,
        pipelineOptions={"rowsPerBlock": 140},
    )
    run_attempts(folder, document, world_size=WORLD_SIZE, apart=apart)
    return folder


def read_attempts(folder: Path, rank: int) -> list[list[Record]]:
    attempts: list[list[Record]] = []
    for line in (folder / f"rank{rank}.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "first" in record:
            attempts.append([])
        attempts[-1].append(record)
    return attempts


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("folder", id="DDP"),
        pytest.param("sharded", id="FSDP", marks=pytest.mark.slow),
    ],
)
def test_ranks_train_each_row_once_across_a_resume(
    kind: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(kind)
    ids = []
    for rank in range(WORLD_SIZE):
        before, after = read_attempts(folder, rank)
        assert after[0]["first"] == SAVED_AT
        kept = [each for each in before[1:] if each["step"] <= SAVED_AT] + after[1:]
        assert [each["step"] for each in kept] == list(range(1, len(kept) + 1))
        ids += [row for each in kept for row in each["ids"]]
    assert sorted(ids) == list(range(NUM_ROWS))


def test_ranks_take_equally_many_steps_and_keep_equal_models(folder: Path) -> None:
    ranks = [read_attempts(folder, rank)[-1] for rank in range(WORLD_SIZE)]
    first, second = ([(each["step"], each["weight"]) for each in rank[1:]] for rank in ranks)
    assert first == second


def test_the_run_counts_the_rows_of_a_script(folder: Path) -> None:
    snapshots = [
        torch.load(folder / f"snapshot-{rank}.pt", weights_only=False) for rank in range(WORLD_SIZE)
    ]
    assert sum(snapshot.samples for snapshot in snapshots) == NUM_ROWS
    assert sum(snapshot.checksum["rows"] for snapshot in snapshots) == NUM_ROWS
    assert all(snapshot.is_finished for snapshot in snapshots)
    assert snapshots[0].metrics.keys() >= {"loss"}


@pytest.mark.slow
def test_a_gathered_state_of_fsdp_is_resumed(sharded: Path) -> None:
    for rank in range(WORLD_SIZE):
        before, after = read_attempts(sharded, rank)
        assert after[0]["weight"] == before[SAVED_AT]["weight"]
        assert after[-1]["weight"] != after[0]["weight"]


@pytest.mark.slow
def test_a_shard_is_refused_on_all_ranks(sharded: Path) -> None:
    for rank in range(WORLD_SIZE):
        failure = (sharded / f"failure-{rank}").read_text()
        assert "state['layers'][0]['weight'] is a DTensor" in failure
        assert "full_state_dict" in failure
