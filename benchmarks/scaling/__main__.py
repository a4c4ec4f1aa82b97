"""`python -m benchmarks.scaling`: measure and write the results; see docs/benchmarks.md."""

import os
import secrets
import sys

# For all processes of the cluster. Ray reads some of them once, when it is imported.
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",  # no other process can join
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise a node that is told to end waits half a minute for its reader.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}

if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    from benchmarks.scaling.comparison import main

    sys.exit(main())
