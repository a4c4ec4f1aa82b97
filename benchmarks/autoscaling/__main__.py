"""`python -m benchmarks.autoscaling`: simulate and write the results; see docs/benchmarks.md."""

import sys

from benchmarks.autoscaling.command import main

if __name__ == "__main__":
    sys.exit(main())
