"""The operator: DatasetExperiments become Ray clusters that train.

    serve → handlers → passes → reconcile: kube.observe → plan → kube.execute

An event only wakes a pass; a pass looks, decides (`plan`, pure: with `builders` for what children
there are) and acts. Modules import downwards only, in the order that pyproject.toml gives.
"""
