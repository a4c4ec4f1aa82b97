"""Compare the simulator with real processes: the same profile and policy, side by side.

A trainer and a step of known pace, both asleep, run as `lastmile run` runs them, on raylets of this
machine. The operator's law reads the run's own metrics every 15 s; data workers are raylets that
are started and drained as it says. Two of three profiles tell what the simulator cannot know (how
long a worker takes to start, what a step and a row cost beside the sleep); the third is foretold.

Reading order: `profiles` (what is run) → `paced` (the trainer, the step) → `live_run` →
`workers` (raylets) → `observing` (the law over both) → `simulating` (the same, simulated) →
`results` → `report` and `figure`; `command` is the command line.
"""
