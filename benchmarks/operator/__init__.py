"""Benchmarks the operator under load: real API server, etcd, scheduler and KubeRay; kwok's pods.

Each arm has a fresh control plane, so that none is affected by another:

    bare       a client creates the same objects as the operator, with the same concurrency, and
               waits until KubeRay reports every cluster as ready: no operator can be faster
    operator   experiments are created, and the operator, in its own process, gets all of them to
               train; it is measured while they train, then while some of them change continuously
    forgetful  the same, with an operator that keeps nothing between passes
    asleep     suspended experiments, which do not change: the cost of having them
    silent     one tenant's heads accept connections and never answer: the duration of another
               tenant's edits

The bare client's objects come from the operator's own `plan`. A digest of the stored specs proves
that both arms created the same clusters. One stand-in, in the benchmark's process, serves as every
head; the rest of the operator is what runs in a pod. Each pass is recorded with the time that it
waited for the API server and for Ray. All processes share the machine, so the times include KubeRay
and kwok: the ratios of one round are meaningful elsewhere, the seconds are not.

`__main__` runs the arms, `arms` defines them, `acting` is the operator's process, and `stage` the
control plane.
"""
