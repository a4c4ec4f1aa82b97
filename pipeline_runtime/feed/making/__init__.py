"""Makes pieces: reads a group of rows, runs the steps, and cuts the rows into pieces.

`maker` serves requests for pieces in a thread, a process or an actor. `work` reads a group and runs
the steps on `stage_rows`; `found_requests` finds the rows of one request in flat tables.
"""
