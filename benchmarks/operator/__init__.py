"""The operator under load: real API server, etcd, scheduler and KubeRay; kwok plays the pods.

Arms take turns, each on a control plane of its own, so that none meets what another left:

    bare       a client creates what the operator would, with the same client and as many at once,
               and waits until KubeRay says that every cluster is ready: what any operator must wait
    operator   as many experiments are created and the operator, a process of its own, brings all to
               train; it is watched while they train, then while some change without pause
    asleep     as many suspended experiments, which nothing happens to: what it costs to have them
    silent     as many experiments of one tenant whose heads accept connections and never answer:
               how long another tenant's edits then take

The bare client's objects come of the operator's own `plan`; that both arms made the same clusters
is proven by a digest of the specs that the API server stored. Heads are one stand-in, in the
benchmark's process; everything else of the operator is what runs in a pod. Every pass is noted with
what of it was waiting for the API server and for Ray. All processes share the machine, so times are
also those of KubeRay and kwok; ratios of one round mean something elsewhere, seconds do not.

`command` runs the arms and keeps what each gave, `arms` has them, `acting` is the operator's
process, `stage` the control plane, `results`, `report` and `figure` judge and show.
"""
