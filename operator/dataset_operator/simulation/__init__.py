"""A run simulated event by event: what any law of scaling would do to it, in seconds of a laptop.

    setting     what a run is like: its trainers, its workers, what changes on the way
    events      the plant: workers that make units, a bounded queue, ranks in lockstep
    plant       pods that are asked for, start, drain and are lost; counters as a source reads them
    loop        a law in the loop with a plant, every control period
    measures    what came of it: GPU-idle seconds, worker hours, settling, overshoot, reversals

The law is any `Law`; the one of `autoscaling` runs here as it does in the operator.
"""
