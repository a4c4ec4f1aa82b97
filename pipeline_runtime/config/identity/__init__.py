"""The identity of a run: the hash of its spec, and the location of its artifacts."""
