"""`lastmile simulate`: the number of data workers that a run will need, and its cost.

    measured    what of `profile.json` is used, read and checked against a manifest
    run         the run that is simulated: the spec, what was measured, what the person assumes
    laws        the operator's law, and numbers that stay the same
    compare     each of them over the same seeds
    advice      what it comes to, in a sentence, and what to change
    document    all of it: the models of `simulation.json`
    sheet       the document as a page of tiles, charts and a table

The law and the plant are those of `autoscaling` and `simulation`; nothing here decides or simulates
by itself.
"""
