"""Programs of a developer's commands: set-up, locks, programs of tests, a cluster."""
