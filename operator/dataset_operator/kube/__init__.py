"""I/O with the API server: a small client, one look at an experiment, one decision carried out.

`client` stands behind the `Kube` protocol; `observe` and `execute` know nothing of HTTP.
"""
