"""The step `hashBucket`."""
