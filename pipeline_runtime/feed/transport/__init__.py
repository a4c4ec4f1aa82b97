"""The transport of chunks from a reader to a rank: wire format, shared memory, compression."""
