"""Turns into a program that the kernel kills as soon as its parent is gone, kill -9 included.

Run as `python exec_bound.py PARENT PROGRAM ARGUMENT…` by `registry.py`; a program of its own
because code between fork and exec would have to run in a process that may have threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    parent, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent):  # it ended before the request was made
        raise SystemExit("exec_bound: the parent is gone")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
