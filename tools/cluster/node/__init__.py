"""Makes this machine a node that runs real pods: its programs, files, images and network."""
