"""Compare the simulator with real processes: the same profiles under the same policy.

A trainer and a step of known pace, which only sleep, run as `lastmile run` runs them, on raylets of
this machine. The policy reads the run's own metrics every 15 s; data workers are raylets that are
started and drained as it decides. Two of three profiles give the costs that the simulator cannot
know (the start of a worker, and a step and a row beside the sleep). The third is predicted.

Reading order: `profiles` (the runs) → `paced` (the trainer, the step) → `live_run` → `workers`
(raylets) → `observing` (the policy with both) → `simulating` (the same, simulated) → `results` →
`report` and `figure`; `command` is the command line.
"""
