"""A run from a manifest to its report: prepare, execute on Ray, summarise."""
