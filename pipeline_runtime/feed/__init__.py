"""The feed: groups of row groups become chunks of finished rows, on any engine.

`plan` runs before it. The consumer runs after it, and cuts chunks into batches. `making` makes
chunks, `transport` sends them, `reader_feed` leases groups to readers: those of one machine
(`local`), or actors (`over_ray`).

The forms of rows on their way to a consumer:

    table    `pa.Table`. A source that stores columns once per request returns two tables as
             `RequestRows` (`sources.rows`).
    chunk    `Chunk` (`feed.chunk`): the rows of one group, or of a part of it, after all steps:
             a table, or `Batches` if the reader makes them.
    wire     `Block` (`transport.wire`): the bytes of the chunks of one call, or their place in
             shared memory. A batch of an unpacked block is a `PackedBatch` (`arrays.packing`).
    batch    `Arrays`, a dict of numpy arrays, which becomes a `Batch`, a dict of tensors on the
             device. Until its arrays are joined, a batch is `BatchRows` (`training.buffered`).

A consumer that writes rows gets a `Chunk` without rows, whose `result` says where they are stored
(`output.spool`).
"""
