"""Workers that the tests start as forks must not share what Ray keeps apart."""

import json
import subprocess
import sys

from ray_heads import RealRay

DRIVER_SECONDS = 120.0
# A runtime environment makes them forks; see tests/support/servers/forked_workers.
DRIVER = """
import json, sys, threading
import ray
from ray._raylet import JobID, TaskID

@ray.remote(num_cpus=0)
class Worker:
    def draw(self):
        # As Ray's native code draws the id of a thread that submits tasks.
        drawn = []
        thread = threading.Thread(
            target=lambda: drawn.append(TaskID.for_fake_task(JobID.from_int(1)).hex())
        )
        thread.start()
        thread.join()
        return sys.orig_argv[1], drawn[0]

ray.init("auto", runtime_env={"env_vars": {"KIND": "forked"}}, log_to_driver=False)
workers = [Worker.remote() for _ in range(3)]
print(json.dumps(ray.get([worker.draw.remote() for worker in workers])))
"""


def test_forked_workers_draw_different_ids(real_ray: RealRay) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER],
        env=real_ray.driver_env,
        capture_output=True,
        text=True,
        timeout=DRIVER_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    workers = json.loads(ended.stdout.splitlines()[-1])
    assert [program.endswith("/fork_server.py") for program, _ in workers] == [True] * 3
    assert len({drawn for _, drawn in workers}) == 3
