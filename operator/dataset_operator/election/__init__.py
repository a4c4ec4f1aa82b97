"""Leader election: only the operator that holds a Kubernetes Lease acts.

`lease` is the object; `elector` decides, purely, by what it saw of it and the time; `candidate`
asks the API server and follows the elector; `guard` stands before every write.
"""
