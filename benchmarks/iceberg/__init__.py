"""Lastmile on Iceberg tables against other programs that bring the same rows into memory.

`targets` lists the comparisons, `lakes` makes the tables, `ours` and `peers` hold the programs,
`child` measures one program in a process of its own, and `command` lets them take turns.
"""
