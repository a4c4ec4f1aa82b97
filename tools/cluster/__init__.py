"""A Kubernetes of upstream's own programs on this machine, for tests: see `control_plane.py`."""
