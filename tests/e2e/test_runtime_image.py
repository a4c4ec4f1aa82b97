"""The runtime's image as a pod gets it: pulled, unpacked, run as its user."""

import pytest
from release import IMAGES
from stage import Stage

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.slow
def test_a_pod_finds_its_kernels_compiled(stage: Stage) -> None:
    command = ["env", "NUMBA_DEBUG_CACHE=1", "python", "-m", "pipeline_runtime.kernels"]

    said = stage.run_pod("kernels", IMAGES["runtime"], command)

    assert "data loaded from" in said
    assert "data saved to" not in said  # compiled here and now: the node is the builder
