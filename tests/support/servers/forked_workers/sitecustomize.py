"""Starts the workers of Ray as forks of a process that has paid for their imports.

Each worker of Ray is a new Python process, which imports ray twice (setup_worker.py, then
default_worker.py), and then torch and the runtime: 3 to 7 CPU seconds, nine times in a whole run.
Where this folder is on PYTHONPATH and LASTMILE_FORKS names a folder for sockets, a worker with a
runtime environment, as those of a run on a cluster, asks for a fork instead (fork_client.py). The
servers (fork_server.py) end when no fork is left for a while. Where a fork is not possible, the
worker starts as Ray would start it.

Forks differ from such workers: those of one server have one seed of hash(), and torch is imported
before the variables of the job are set. Whole runs of other tests have workers that Ray starts.
"""

import os
import sys

# Without a runtime environment, Ray starts default_worker.py at once: those are no forks.
if "LASTMILE_FORKS" in os.environ and "".join(sys.orig_argv[1:2]).endswith("/setup_worker.py"):
    from fork_client import run_worker

    run_worker(sys.orig_argv[2:])
