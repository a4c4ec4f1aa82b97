"""`python -m benchmarks.operator`."""

import sys

from benchmarks.operator.command import main

if __name__ == "__main__":
    sys.exit(main())
