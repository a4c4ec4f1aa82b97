"""Iceberg's metadata: a thin layer over PyIceberg, which sources, outputs and commands share.

PyIceberg owns catalogs, scan planning, delete files and commits. Lastmile reads and writes the data
files itself. `catalogs` opens catalogs and tables, and turns their errors into Lastmile's.
PyIceberg is imported lazily: no process that reads other tables pays for it.
"""
