"""`python -m benchmarks.overlap`: measure and write the results; see docs/benchmarks.md."""

import sys

from benchmarks.overlap.command import main

if __name__ == "__main__":
    sys.exit(main())
