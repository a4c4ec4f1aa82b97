"""Promotes staging tables into an Iceberg table, and rolls partitions back.

`promote` joins staging tables to the files of some partitions, and `rollback` brings partitions
back to what they were before. Both write new data files beside the old ones (`rewriting`) and
replace the old ones in one commit (`swapping`). The commands of the same names run them.
"""
