"""Children of an experiment as plain dictionaries, each from arguments alone.

KubeRay's Python client is on no registry; the real CRDs judge these by strict field validation.
"""
