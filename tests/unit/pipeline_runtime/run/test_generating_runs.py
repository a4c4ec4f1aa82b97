"""Runs that generate texts: the report's counts, error rows, and attempts that resume."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_models
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from pipeline_runtime import Pipeline
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import ManifestError, StepError
from pipeline_runtime.report import load_summary
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import Finished, run_experiment

SAMPLES = Path(__file__).parents[4] / "deploy" / "samples"
ROWS, BAD = 200, 150


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a storage root with a table and a model. One prompt exceeds the model's context."""
    tiny_models.save_llama(tmp_path / "llama")
    titles = [f"red hat {number}" for number in range(ROWS)]
    titles[BAD] = "z" * tiny_models.CONTEXT
    lists = pa.array([None if i % 3 else [i, None] for i in range(ROWS)], pa.list_(pa.int64()))
    table = pa.table({"id": np.arange(ROWS), "title": titles, "carried": lists})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=20)
    return tmp_path


def run(
    root: Path,
    name: str,
    *,
    resume: bool = False,
    output: Mapping[str, Any] = {},
    dataset: Mapping[str, Any] = {},
    spec: Mapping[str, Any] = {},
    then: Sequence[Mapping[str, Any]] = (),
    **fields: Any,
) -> Finished:
    step = {
        "engine": "Transformers",
        "source": "llama",
        "prompt": "Tag: {title}",
        "outputs": [{"name": "tag", "type": "string"}],
        "errorColumn": "why",
        "maxErrorPercent": "0.5",
        "maxTokens": 3,
        **fields,
    }
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": name},
        "spec": {
            "dataset": {"parquet": {"uri": "in.parquet"}, "rowKey": ["id"], **dataset},
            "pipelineOptions": {"rowsPerBlock": 20},
            "pipeline": [{"generate": step}, *then],
            "output": {"parquet": {"uri": f"{name}/"}, **output},
            **spec,
        },
    }
    options = RunOptions(
        output=root / "reports" / name, folder_per_run=True, storage_root=str(root), resume=resume
    )
    return run_experiment(parse_experiment(document), yaml.safe_dump(document), options)


def read(root: Path, name: str) -> pa.Table:
    return Pipeline.read_parquet(f"{name}/").to_table(str(root)).sort_by("id")


def measure(finished: Finished) -> dict[str, float | None]:
    return {each.kind: each.value for each in load_summary(finished.output).measures}


def test_every_row_has_a_text_or_an_error(root: Path) -> None:
    finished = run(root, "all", temperature="0.7")
    assert finished.outcome.kind == "Complete", finished.outcome.error
    table = read(root, "all")
    assert table.select(["id", "carried"]).equals(
        pq.read_table(root / "in.parquet", columns=["id", "carried"])
    )
    bad = table.filter(table["tag"].is_null())
    assert bad["id"].to_pylist() == [BAD]
    assert bad["why"][0].as_py().startswith("the prompt does not fit")
    assert table["why"].null_count == ROWS - 1
    found = measure(finished)
    assert found["errorRows"] == 1
    assert ROWS <= (found["generatedTokens"] or 0) <= 3 * (ROWS - 1)
    assert (found["tokensPerSecond"] or 0) > 0
    [model] = load_summary(finished.output).models
    assert model.uri == str(root / "llama")
    assert "does not fit into the model" in (finished.output / "report.html").read_text()


def test_a_stopped_run_neither_loses_nor_repeats_a_row(root: Path) -> None:
    fields = {"temperature": 1}
    first = run(root, "again", maxErrorPercent=0, **fields)  # stops at the bad row
    assert first.outcome.kind == "Failed"
    assert "maxErrorPercent: must be above 0" in str(first.outcome.error)
    assert len(list((root / "_staging" / "again").glob("*/pieces/*.json"))) > 1
    assert not (root / "again").exists()
    resumed = run(root, "again", resume=True, **fields)
    assert resumed.outcome.kind == "Complete", resumed.outcome.error
    assert load_summary(resumed.output).run.attempt == 2
    once = run(root, "once", **fields)
    assert read(root, "again").equals(read(root, "once"))
    assert read(root, "again")["id"].to_pylist() == list(range(ROWS))
    counts = [measure(finished) for finished in (resumed, once)]
    for each in counts:
        each.pop("tokensPerSecond")
    assert counts[0] == counts[1]


def test_a_resumed_run_refuses_another_model(root: Path) -> None:
    assert run(root, "other", maxErrorPercent=0).outcome.kind == "Failed"
    tiny_models.save_llama(root / "llama", seed=5)
    with pytest.raises(ManifestError, match=r"generate\.source: must have the files that this run"):
        run(root, "other", resume=True)


def test_too_many_errors_fail_the_run_until_they_are_allowed(root: Path) -> None:
    first = run(root, "errors", maxErrorPercent="0.4")
    assert first.outcome.kind == "Failed"
    assert "spec.pipeline[0]: maxErrorPercent: " in str(first.outcome.error)
    assert "1 of 200 rows have an error" in str(first.outcome.error)
    assert not (root / "errors").exists()
    again = run(root, "errors", maxErrorPercent="0.5", resume=True)
    assert again.outcome.kind == "Complete", again.outcome.error
    assert load_summary(again.output).run.attempt == 2
    assert read(root, "errors").num_rows == ROWS


def test_a_pipeline_with_texts_can_be_looked_at(root: Path) -> None:
    pipeline = Pipeline.read_parquet("in.parquet", row_key="id").generate(
        tag="string",
        engine="Transformers",
        source="llama",
        prompt="Tag: {title}",
        max_tokens=3,
        max_error_percent=1,
    )
    rows = pipeline.measure({"name": "all", "mean": {"column": "id"}}).head(2, str(root))
    assert rows["id"].to_pylist() == [0, 1]
    assert rows["tag"].null_count == 0
    assert "generate tag (llama)" in pipeline.explain(str(root))


def test_too_many_errors_in_kept_rows_fail_the_run(root: Path) -> None:
    uri, warehouse = f"sqlite:///{root}/catalog.db", f"file://{root}/lake"
    catalog = SqlCatalog("lake", uri=uri, warehouse=warehouse)
    catalog.create_namespace("db")
    rows = pa.table({"id": range(10), "title": [None, *"abcdefghi"]})
    catalog.create_table("db.titles", rows.schema).append(rows)
    cache = {"iceberg": {"catalog": "lake", "table": "db.cache"}, "bucketBy": "id", "buckets": 2}
    changed = {
        "catalogs": [{"name": "lake", "type": "Sql", "uri": uri, "warehouse": warehouse}],
        "dataset": {"iceberg": {"catalog": "lake", "table": "db.titles"}, "rowKey": ["id"]},
    }

    def keep(most: int) -> Finished:
        then = [{"materialize": cache}]
        return run(root, "kept", spec=changed, then=then, prompt="{title}", maxErrorPercent=most)

    with pytest.raises(StepError, match="but is 9 %, and 1 of 10 rows have an error"):
        keep(9)
    finished = keep(10)
    assert finished.outcome.kind == "Complete", finished.outcome.error
    assert read(root, "kept")["tag"].null_count == 1
    with pytest.raises(StepError, match="but is 9 %, and 1 of 10 rows have an error"):
        keep(9)  # the rows that are kept had another limit


def test_key_and_score_has_text_and_error(root: Path) -> None:
    finished = run(root, "keyed", output={"layout": "KeyAndScore"})
    assert finished.outcome.kind == "Complete", finished.outcome.error
    assert read(root, "keyed").schema.names == ["id", "tag", "why"]


@pytest.mark.parametrize(
    "spec", [{}, {"output": {"mode": "OverwritePartitions", "parquet": {"uri": "x/"}}}]
)
def test_texts_come_with_a_table_that_counts_each_row(spec: dict[str, Any]) -> None:
    step = {
        "engine": "Transformers",
        "source": "m",
        "prompt": "{x}",
        "outputs": [{"name": "y", "type": "string"}],
    }
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "n"},
        "spec": {"dataset": {"parquet": {"uri": "x"}}, "pipeline": [{"generate": step}], **spec},
    }
    with pytest.raises(ManifestError, match=r"spec\.pipeline\[0\]: generate must "):
        parse_experiment(document)


def test_the_sample_keeps_texts_by_their_ids(root: Path) -> None:
    tiny_models.save_llama(root / "models" / "tagger")
    rows = 2000
    table = pa.table(
        {
            "_lastmile_row_id": np.arange(rows),
            "request_id": np.arange(rows),
            "user_id": np.arange(rows),
            "position": pa.array(np.zeros(rows), pa.int8()),
            "user_country": ["de", "fr"] * (rows // 2),
            "device": ["ios", None] * (rows // 2),
        }
    )
    folder = root / "data" / "impressions" / "day=2026-01-08"
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "part.parquet")
    text = (SAMPLES / "generating.yaml").read_text()
    options = RunOptions(output=root / "report", storage_root=str(root))
    finished = run_experiment(parse_experiment(yaml.safe_load(text)), text, options)
    assert finished.outcome.kind == "Complete", finished.outcome.error
    found = pq.read_table(root / "gifts")
    assert found.schema.names == ["request_id", "user_id", "user_country", "gift", "gift_error"]
    assert 0 < found.num_rows < 100
    assert found["gift"].null_count == 0


def test_columns_that_a_request_shares_give_each_row_a_text(root: Path) -> None:
    table = pq.read_table(root / "in.parquet").set_column(
        1, "title", pa.array([f"hat {number // 4}" for number in range(ROWS)])
    )
    request = pa.array(np.arange(ROWS) // 4)
    pq.write_table(table.append_column("request", request), root / "in.parquet", row_group_size=20)
    shared = {"requestKey": "request", "requestColumns": ["title", "carried"]}
    for name, dataset in (("flat", {}), ("shared", shared)):
        finished = run(root, name, dataset=dataset, temperature=1)
        assert finished.outcome.kind == "Complete", finished.outcome.error
        assert measure(finished)["errorRows"] == 0
    assert read(root, "shared").equals(read(root, "flat"))
    tags = read(root, "flat")["tag"].to_pylist()
    assert len({*tags[:4]}) > 1  # each row draws for itself
