"""Entry point of `python -m benchmarks.gpu`."""

import sys

if __name__ == "__main__":  # processes that it starts import this file, and need no more of it
    from benchmarks.gpu.command import main

    sys.exit(main())
