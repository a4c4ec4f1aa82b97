"""Makes chunks: reads a group of rows, runs the steps, and cuts the rows into chunks.

`maker` serves requests for chunks in a thread, a process or an actor. `work` runs the steps on
`stage_rows`, which `group_reading` reads; `found_requests` finds the rows of one request in flat
tables.
"""
