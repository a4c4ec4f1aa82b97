"""Compare the simulator with real processes: the same profiles under the same policy.

A trainer and a step of known pace, which only sleep, run as `lastmile run` runs them: on raylets of
this machine, or on pods under the operator (tests/e2e/test_simulator.py). The policy reads the
run's own metrics every 15 s. Two of three profiles give the costs that the simulator cannot know
(the start of a worker, and a step and a row beside the sleep). The third is predicted.

Reading order: `profiles` (the runs) → `paced` (the trainer, the step) → `watching` (a run, watched
to its last row) → `live_run` (on raylets) → `simulating` (the same, simulated) → `comparison`.
"""
