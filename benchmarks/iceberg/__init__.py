"""Lastmile on Iceberg tables against other programs that bring the same rows into memory.

`__main__` lists the cells, `programs` what they compare and how, `lakes` makes the tables, `ours`,
`peers`, `spark` and `writing` hold the programs, and `child` measures one program in a process of
its own.
"""
