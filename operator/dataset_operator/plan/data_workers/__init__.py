"""Rules about the number of data workers: the policy, and requests by hand."""
