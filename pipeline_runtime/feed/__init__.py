"""The feed: groups of row groups become chunks of ready rows, on any engine.

Before it runs `plan`, after it the consumer, which cuts chunks into batches. `making` makes chunks,
`transport` sends them, `reader_feed` leases groups to readers: those of one machine (`local`), or
actors (`over_ray`).

The forms of rows on their way to a trainer:

    table    `pa.Table`, from a source. Where the rows of a request share columns these stand once:
             in `RequestRows` (`sources.rows`), and in `Rows` (`making.stage_rows`), which copies a
             column only when a step reads it.
    chunk    `Piece`: a header and the rows of one group, or a part of it, after all steps.
             `ReadyPiece` has the same rows as batches, made where its reader runs.
    wire     `PackedBatch` (`arrays.packing`) is a batch in one buffer; a `SharedBlock`
             (`transport.wire`) refers to chunks in shared memory, other chunks are rows of a table
             with two columns, header and bytes.
    batch    `BatchRows` (`training.buffered`): the parts of chunks that make a batch. They become
             `Arrays`, a dict of numpy arrays, then a `Batch`, a dict of tensors on the device.

A consumer that writes rows gets a `Piece` whose rows are stored already (`output.spool`).
"""
