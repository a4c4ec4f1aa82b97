"""Rules about the number of data workers: the policy, requests by hand, and draining."""
