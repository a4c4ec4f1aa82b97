"""Grafana's dashboards: `fleet` and `experiment` are made of the parts in `panels`.

`make chart` writes their JSON, by Grafana's own types. `draw` draws the same JSON for the docs,
without a Grafana.
"""
