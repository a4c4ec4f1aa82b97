"""The command line: `python -m benchmarks.calibration`."""

import sys

from benchmarks.calibration.command import main

if __name__ == "__main__":  # a worker process imports this module too
    sys.exit(main())
