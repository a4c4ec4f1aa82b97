"""The commands that the operator runs in pods, where the credentials of the store are."""
