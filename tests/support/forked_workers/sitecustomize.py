"""Starts the workers of Ray as forks of a process that has paid for their imports.

Each worker of Ray is a new Python process, which imports ray twice (setup_worker.py, then
default_worker.py), and then torch and the runtime: 3 to 7 CPU seconds, nine times in a whole run.
Where this folder is on PYTHONPATH and LASTMILE_FORKS names a folder for sockets, a worker asks for
a fork instead (fork_client.py). The first worker of a job and a runtime environment starts the
server (fork_server.py), which ends when no fork is left. Where a fork is not possible, the worker
starts as Ray would start it.
"""

import os
import sys

if "LASTMILE_FORKS" in os.environ and [
    argument for argument in sys.orig_argv[1:2] if argument.endswith("/workers/setup_worker.py")
]:
    from fork_client import run_worker

    run_worker(sys.orig_argv[2:])
