"""The files of a report: `summary.json`, `metrics.parquet`, `plan.json`, the decisions."""
