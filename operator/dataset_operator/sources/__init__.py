"""Sources of a run's metrics, behind one protocol: `MetricsSource`.

    runtime       the driver's page on the head, and Ray's of every pod with trainers; no Prometheus
    prometheus    a Prometheus that scrapes both, or DCGM's exporter for the GPUs

`observe` asks the one that the settings name, once a pass. What a source cannot tell is unknown,
with a reason that a person sees; it is never zero, and never an error of the pass.
"""
