"""Telemetry of the operator itself: logs, metrics, and health.

`watched` remembers what came through the watch; `freshness` holds it against what the API server
lists; `leadership` says whether it acts at all; `metrics` and `probes` show them to Prometheus and
the kubelet, `experiment_metrics` how each experiment stands; `log_records` is for people.
"""
