"""Does the work of a level for loaders of others: from a row group to batches of exact size."""
