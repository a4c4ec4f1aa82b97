"""What the operator tells of itself: logs, metrics, and whether it is alive.

`watched` remembers what came through the watch; `freshness` holds it against what the API server
lists; `metrics` and `probes` show both to Prometheus and the kubelet, `experiment_metrics` how each
experiment stands; `logs` is for people.
"""
