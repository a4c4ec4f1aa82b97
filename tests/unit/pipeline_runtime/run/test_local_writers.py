"""Writers in threads of this process."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pipeline_runtime.run.writing.local_writers import open_local_writers


def test_a_model_computes_with_one_thread_per_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plan = cast(Any, SimpleNamespace(feed=SimpleNamespace(may_be_threads=True)))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with open_local_writers(plan, cast(Any, None)):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
