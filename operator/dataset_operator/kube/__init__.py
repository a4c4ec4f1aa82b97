"""I/O with the API server: a small client, and the observe and execute steps of a pass.

`client` implements the `Kube` protocol; `observe` and `execute` know nothing of HTTP.
"""
