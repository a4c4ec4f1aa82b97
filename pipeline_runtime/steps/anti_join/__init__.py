"""The step `antiJoin`."""
