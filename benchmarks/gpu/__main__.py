"""Entry point of `python -m benchmarks.gpu`."""

import sys

if __name__ == "__main__":  # processes that it spawns import this file
    from benchmarks.gpu.command import main

    sys.exit(main())
