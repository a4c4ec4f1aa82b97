"""Records that outlive a cluster in the artifacts store, beside checkpoints and report.

    <experiment>/history/<run id>/logs/<pod>/<session>/…   what Ray's processes of a pod logged
    <experiment>/history/<run id>/*.json                   events, status, manifest, decisions

`pod_logs` runs beside Ray in every pod, `closing` in a short pod before a cluster is given back;
`reading` is for people's commands. Checkpoints, reports and metrics lie in the runs' own folders.
"""
