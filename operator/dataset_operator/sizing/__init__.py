"""`lastmile simulate`: the number of data workers that a run will need, and its cost.

    measured        the part of `profile.json` that is used, checked against a manifest
    simulated_run   the simulated run: the spec, the measurements, the user's assumptions
    scalers         the operator's policy, and constant numbers of workers
    compare         each of them over the same seeds
    conclusion      the result in a sentence, and advice on the manifest
    document        the models of `simulation.json`
    sheet           the document as a table and as a page
    session         all of it from end to end

The policy is that of `autoscaling`, and the simulator that of `simulation`.
"""
