"""What a developer's commands run: set-up, locks, the programs that tests talk to, a cluster."""
