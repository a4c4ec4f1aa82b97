"""A table that Lastmile has never seen, written by another tool, runs from its manifest alone."""

from pathlib import Path
from typing import Any

import duckdb
from run_support import Project, checksum_of
from warm_lastmile import Lastmile

# Hive partitions with a null and a name to be escaped, decimals, timestamps, enums, structs.
WRITE = """
    create type level as enum ('low', 'mid', 'high');
    copy (
      select
        i::bigint as "order no",
        (i % 97)::utinyint as shop,
        case i % 4 when 0 then 'São Paulo' when 1 then 'New York/NY' when 2 then null
          else 'Kyōto' end as city,
        2020 + i % 3 as year,
        (i * 7 % 1000 / 10)::decimal(9, 2) as price,
        timestamp '2024-01-01' + to_minutes(i::bigint) as placed,
        (['low', 'mid', 'high'])[1 + i % 3]::level as level,
        case when i % 5 = 0 then null else [i % 11, i % 13] end as basket,
        i % 6 = 0 as returned
      from range(6000) t(i)
    ) to '{folder}' (format parquet, partition_by (city, year), row_group_size 2048)
"""
REFERENCE = """
    select "order no" from read_parquet('{folder}/**/*.parquet', hive_partitioning = true)
    where year > 2020 and city is not null and price >= 5 and level <> 'low'
      and placed < timestamp '2024-01-04 12:00:00'
"""
MODULE = """
import pathlib
import pyarrow as pa
import pyarrow.compute as pc
import torch

def discount(table, rate):
    price = pc.multiply(pc.cast(table.column("price"), pa.float64()), 1 - rate)
    return pa.table({"net": pc.cast(price, pa.float32())})

def fit(ctx):
    model = ctx.prepare(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with pathlib.Path(ctx.config["log"]).open("w") as log:
        for epoch in ctx.epochs():
            for batch in ctx.batches():
                x = torch.stack([batch["net"], batch["basket_size"].float()], dim=1)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    model(x)[:, 0], batch["returned"].float(), reduction="none"
                )
                ctx.weighted_mean(loss, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                log.write(f"{sorted((n, str(t.dtype)) for n, t in batch.items())}\\n")
                ctx.report({"loss": loss.mean().item()})
"""


BASKET_SIZE = {"name": "basket_size", "expression": "coalesce(list_length(basket), 0)"}


def spec(folder: Path) -> dict[str, Any]:
    """Other step order than the samples have: renames and the map first, the filter last."""
    return {
        "dataset": {
            "parquet": {"uri": "orders/"},
            "where": "year > 2020 and city is not null",
            "rowKey": ["order no"],
        },
        "pipeline": [
            {"rename": {"columns": [{"name": "order no", "newName": "order"}]}},
            {
                "map": {
                    "function": "shop_steps:discount",
                    "options": {"rate": 0.1},
                    "inputColumns": ["price"],
                    "outputColumns": [{"name": "net", "type": "float32"}],
                }
            },
            {"derive": {"columns": [BASKET_SIZE]}},
            {"filter": {"where": "price >= 5 and level <> 'low'"}},
            {"filter": {"where": "placed < timestamp '2024-01-04 12:00:00'"}},
            {"hashBucket": {"columns": ["city", "shop"], "buckets": 64}},
            {"select": {"columns": ["net", "basket_size", "city", "shop", "year", "returned"]}},
        ],
        "training": {
            "entrypoint": "shop_steps:fit",
            "batchSize": 64,
            "labelColumn": "returned",
            "config": {"log": str(folder / "batches.log")},
        },
    }


def test_it_runs_from_a_manifest_and_a_module_beside_it(
    tmp_path: Path, on_cluster: Lastmile
) -> None:
    table = tmp_path / "orders"
    duckdb.connect().execute(WRITE.format(folder=table))
    run = Project(folder=tmp_path, root=str(tmp_path), name="shop", module="shop_steps")
    run.write(spec(tmp_path), {"shop_steps": MODULE})

    ended = on_cluster.run(*run.args("--address", "auto"))

    assert ended.code == 0, str(ended)
    kept = duckdb.connect().execute(REFERENCE.format(folder=table)).fetchall()
    assert 100 < len(kept) < 3000
    assert run.summary.checksum.model_dump() == checksum_of([row for (row,) in kept])
    assert run.summary.dataset.files_read < run.summary.dataset.files  # partitions were pruned
    first = (tmp_path / "batches.log").read_text().splitlines()[0]
    for name, dtype in (
        ("net", "float32"),
        ("basket_size", "int"),
        ("city", "int"),
        ("year", "int64"),
        ("returned", "bool"),
    ):
        assert f"('{name}', 'torch.{dtype}" in first
    assert run.summary.training.samples == len(kept)
