"""Mutated Parquet files: no crash, no hang, and no value that differs from pyarrow's.

LASTMILE_MUTATIONS is the number of files, and LASTMILE_SEED chooses them; a seed always gives the
same files.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "tables" / "mutated_files.py"
NUM_MUTATIONS = int(os.environ.get("LASTMILE_MUTATIONS", "200"))
SEED = int(os.environ.get("LASTMILE_SEED", "1"))
SECONDS_EACH = 1  # 20 ms on an idle machine


@pytest.mark.slow
@pytest.mark.timeout(600 + SECONDS_EACH * NUM_MUTATIONS)
def test_mutated_files_are_errors_or_pyarrows_values(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, tmp_path, str(SEED), str(NUM_MUTATIONS)]
    seconds = 300 + SECONDS_EACH * NUM_MUTATIONS
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    again = f"LASTMILE_SEED={SEED} LASTMILE_MUTATIONS={NUM_MUTATIONS}, files in {tmp_path}"
    assert not found["failures"], [again, found]
    # pyarrow itself may abort the process: see `judge_pyarrow`.
    assert found["ends"].get("an end of pyarrow", 0) <= 1 + NUM_MUTATIONS / 200
    assert found["ends"]["an error"] > NUM_MUTATIONS / 4
    assert found["ends"]["pyarrow's values"] > NUM_MUTATIONS / 20
