"""Write a pipeline's rows as a Parquet table: staged by data workers, merged, then committed.

    chunks ─▶ spool (one file per chunk, rows sorted by partition) ─▶ merge (files of the target
    size) ─▶ commit (one rename, or a manifest on object stores)

`partitions` names the folders, `spool` writes and reads chunks' rows, `records` is what survives a
kill, `recording` stores it, `merge` plans and writes the table's files, `storage` and `commit` put
them in place, and `job` runs all of it. Nothing here imports ray or torch.
"""
