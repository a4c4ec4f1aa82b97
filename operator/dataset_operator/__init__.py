"""The operator: DatasetExperiments become Ray clusters that train.

A pass is observe → plan → execute. What stands here so far is pure: `builders` say which children
an experiment has. Modules import downwards only: builders → settings, names → api.
"""
