"""Compare the simulator with real pods: the same profiles under the same policy.

A trainer and a step of known pace, which only sleep, run as an experiment on pods under the
operator (tests/e2e/test_simulator.py), which reads the run's metrics every 15 s. Two of three
profiles give the costs that the simulator cannot know (the start of a worker, and a step and a row
beside the sleep). The third is predicted.

Reading order: `profiles` (the runs) → `paced` (the trainer, the step) → `paced_run` (table and
manifest) → `watching` (a run, watched to its last row) → `simulating` (the same, simulated) →
`comparison`.
"""
