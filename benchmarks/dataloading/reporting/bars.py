"""The limit of the load average before a measurement."""

MAX_LOAD = 0.5  # of the last minute; with more, other work sometimes uses a core
