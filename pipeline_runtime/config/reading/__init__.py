"""The reading of manifests: overrides, checks, and the wording of every problem found."""
