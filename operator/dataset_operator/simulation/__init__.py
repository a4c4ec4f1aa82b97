"""Simulates a run event by event, to show what an autoscaling policy would do to it within seconds.

    setting     the simulated run: its trainers, its workers, and changes on the way
    events      the simulator: workers that make units, a bounded queue, ranks in lockstep
    cluster     the simulated cluster: pods that start, drain and are lost; counters of a source
    truth       the true means, which no policy can see
    loop        a policy in the loop with a simulated cluster, every control period
    measures    GPU-idle seconds, worker hours, settling, overshoot and reversals of a run

A policy is any `AutoscalingPolicy`; that of `autoscaling` runs here as it does in the operator.
"""
