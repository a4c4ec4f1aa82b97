"""Builds the objects of an experiment as plain dictionaries, each from its arguments alone.

No package registry has KubeRay's Python client. The API server checks these dictionaries against
the real CRDs, by strict field validation.
"""
