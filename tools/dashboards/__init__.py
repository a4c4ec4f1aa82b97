"""Grafana's dashboards, from a source that a person reads; see `make dashboards`.

`fleet` and `experiment` say what is shown, in the words of `panels`; `build` makes Grafana's JSON
of it by Grafana's own types, so that its schema holds them. What is in deploy/grafana is what this
gives. `pictures` draws the same JSON for the docs, where there is no Grafana.
"""
