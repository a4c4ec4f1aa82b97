"""`python -m benchmarks.simulator`: run, simulate, compare; see docs/benchmarks.md."""

import os
import sys

from benchmarks.scaling.__main__ import ENVIRONMENT

if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    from benchmarks.simulator.comparison import main

    sys.exit(main())
