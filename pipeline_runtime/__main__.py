"""`python -m pipeline_runtime`: the command line, in whichever Python this is."""

from pipeline_runtime.cli import main

main()
