"""Two ranks of torch.distributed share a loader's rows: equally many batches, each row once."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.multiprocessing as mp
from loader_ranks import OUT_OF_STEP, Seen, run_rank

from pipeline_runtime import Pipeline

NUM_ROWS, WORLD_SIZE = 1000, 2


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """Run both ranks in processes of their own, and return what each saw."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "t").mkdir()
    table = pa.table({"x": np.arange(NUM_ROWS)})
    pq.write_table(table, folder / "t/a.parquet", row_group_size=140)  # an odd number of groups
    loader = Pipeline.read_parquet(f"{folder}/t/").loader(64, ["x"], shuffle=True, seed=1)
    mp.spawn(run_rank, args=(WORLD_SIZE, folder, loader), nprocs=WORLD_SIZE)
    return [torch.load(folder / f"rank-{r}.pt", weights_only=False) for r in range(WORLD_SIZE)]


@pytest.mark.parametrize(
    "loop", ["epoch 0", "epoch 1", "pad", "own state", "state of rank 0", "after errors"]
)
def test_ranks_share_all_rows_in_equally_many_batches(ranks: list[Seen], loop: str) -> None:
    rows = [row for seen in ranks for batch in seen.batches[loop] for row in batch]
    assert sorted(rows) == list(range(NUM_ROWS))
    assert ranks[0].sizes[loop] == ranks[1].sizes[loop] == [64] * 8
    assert [sum(map(len, seen.batches[loop])) for seen in ranks] == [500, 500]


def test_drop_leaves_out_what_does_not_fill_a_batch_on_every_rank(ranks: list[Seen]) -> None:
    rows = [row for seen in ranks for batch in seen.batches["drop"] for row in batch]
    assert len(set(rows)) == len(rows) >= NUM_ROWS - 2 * 64
    assert ranks[0].sizes["drop"] == ranks[1].sizes["drop"]
    assert set(ranks[0].sizes["drop"]) == {64}


def test_a_rank_without_rows_gets_padding(ranks: list[Seen]) -> None:
    assert [seen.batches["filtered"] for seen in ranks] == [
        [list(range(64)), list(range(64, 80))],
        [[], []],
    ]
    assert [seen.sizes["filtered"] for seen in ranks] == [[64, 64]] * 2


def test_a_resume_delivers_the_batches_of_the_undisturbed_epoch(ranks: list[Seen]) -> None:
    for seen in ranks:
        assert seen.batches["own state"] == seen.batches["pad"]
        assert seen.batches["state of rank 0"] == seen.batches["pad"]


def test_a_loader_of_its_own_reads_all_rows_on_each_rank(ranks: list[Seen]) -> None:
    for seen in ranks:
        rows = [row for batch in seen.batches["alone"] for row in batch]
        assert rows == list(range(NUM_ROWS))


def test_the_length_is_that_of_every_rank(ranks: list[Seen]) -> None:
    for seen in ranks:
        assert seen.lengths == {name: len(seen.sizes[name]) for name in seen.lengths}
        assert set(seen.lengths) == {"drop", "pad", "alone"}


def test_both_ranks_have_one_model_in_the_end(ranks: list[Seen]) -> None:
    assert ranks[0].weights is not None
    assert torch.equal(ranks[0].weights, ranks[1].weights)


def test_a_short_last_batch_is_refused_on_several_ranks(ranks: list[Seen]) -> None:
    assert all("'keep'" in seen.error for seen in ranks)


def test_ray_is_not_imported(ranks: list[Seen]) -> None:
    assert not any(seen.has_ray for seen in ranks)


@pytest.mark.parametrize(("case", "name"), OUT_OF_STEP.items())
def test_ranks_that_are_out_of_step_all_raise_an_error(
    ranks: list[Seen], case: str, name: str
) -> None:
    first, second = (seen.out_of_step[case] for seen in ranks)
    assert first == second
    assert name in first
    assert "rank 0" in first
    assert "rank 1" in first


def test_an_error_of_one_rank_ends_the_loop_of_the_others(ranks: list[Seen]) -> None:
    alone, told = sorted((seen.failure for seen in ranks), key=lambda text: text[:1] == "L")
    assert alone.startswith("StepError")
    assert told.startswith("LoaderError")
    assert "int8" in alone
    assert alone in told
