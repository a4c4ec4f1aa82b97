"""A Kubernetes of upstream's own programs on this machine: `control_plane.py`, `full_node.py`."""
