"""The making of pieces: one group of rows is read, goes through the steps and is cut into pieces.

`maker` answers requests for pieces, be its reader a thread, a process or an actor. `work` reads a
group and runs the steps on `stage_rows`; `found_requests` finds rows of one request in flat tables.
"""
