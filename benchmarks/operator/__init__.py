"""Benchmarks the operator under load: real API server, etcd, scheduler and KubeRay; kwok's pods.

Each arm has a fresh control plane, so that none is affected by another:

    bare client   creates the same objects as the operator, with the same concurrency, and waits
                  until KubeRay reports every cluster as ready: no operator can be faster
    operator      gets all experiments to train, in its own process; it is measured while they
                  train, while some of them change continuously, and while all are suspended

The bare client's objects come from the operator's own `plan`. A digest of the stored specs proves
that both arms created the same clusters. One stand-in, in the benchmark's process, serves as every
head; the rest of the operator is what runs in a pod. All processes share the machine, so the times
include KubeRay and kwok: the ratios of one round are meaningful elsewhere, the seconds are not.

`__main__` has the arms and the cells, `acting` the operator's process and its measurements, and
`stage` the control plane.
"""
