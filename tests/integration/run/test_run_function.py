"""A function of a notebook as the entrypoint, over Ray, where it must reach another process."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warm_lastmile import RUN_SECONDS

# Fails once after a checkpoint, and uses a name of its own module, as cells of a notebook do.
NOTEBOOK = """
import json, os, pathlib, sys
from pipeline_runtime import Pipeline

HERE = str(pathlib.Path(__file__).parent)

def describe(ctx):
    return f"step {ctx.step} in process {os.getpid()}"

def loop(ctx):
    early = pathlib.Path(HERE, "early")
    for _ in ctx.epochs():
        for _ in ctx.batches():
            saved = {"step": ctx.step} if ctx.checkpoint_due() else None
            ctx.report({"loss": 1.0}, saved)
            print(describe(ctx))
            if ctx.step == 7 and not early.exists():
                early.touch()
                raise ValueError("the user's own mistake")

if __name__ == "__main__":
    pipeline = Pipeline.read_parquet(HERE + "/t.parquet").with_options(feed="ray_data")
    finished = pipeline.train(
        "notebook", entrypoint=loop, batch_size=10, checkpoint={"every_steps": 3},
        storage_root=HERE, output=HERE + "/out", resume=sys.argv[1] == "resume",
    )
    found = {"pid": os.getpid(), "error": finished.outcome.error}
    pathlib.Path(HERE, sys.argv[1] + ".json").write_text(
        json.dumps(found | {"summary": finished.summary.model_dump(mode="json")})
    )
"""


@pytest.mark.slow
def test_a_function_trains_in_a_worker_of_ray_and_resumes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "t.parquet")
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    found = {}
    for way in ("begin", "resume"):
        ended = subprocess.run(
            [sys.executable, str(tmp_path / "notebook.py"), way],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=RUN_SECONDS,
        )
        assert ended.returncode == 0, ended.stderr
        found[way] = json.loads((tmp_path / f"{way}.json").read_text())

    first, second = found["begin"]["summary"], found["resume"]["summary"]
    assert (first["run"]["outcome"], second["run"]["outcome"]) == ("Failed", "Complete")
    assert "the user's own mistake" in found["begin"]["error"]
    assert first["run"]["run_hash"] == second["run"]["run_hash"]
    assert second["run"]["resumed_from"]["step"] == 6
    assert second["training"]["steps"] == 10
    log = (tmp_path / "out" / "run.log").read_text()
    pids = {line.rsplit(" ", 1)[1] for line in log.splitlines() if line.startswith("step ")}
    assert len(pids) == 2
    assert not pids & {str(each["pid"]) for each in found.values()}
