"""The transport of pieces from a reader to a rank: wire format, shared memory, compression."""
