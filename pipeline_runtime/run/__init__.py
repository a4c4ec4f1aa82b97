"""A run from a manifest to its report, whatever its consumer.

`session` executes a run: it asks the consumer (`consumers`) to prepare and to do the work, in
`training` or in `writing`, and does what all runs share: Ray, metrics, signals, phases, the report.
"""
