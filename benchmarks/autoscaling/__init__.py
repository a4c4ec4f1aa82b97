"""Simulates every autoscaling policy that a user might choose, in every scenario."""
