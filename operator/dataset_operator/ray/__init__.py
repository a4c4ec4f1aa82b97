"""Talks to a cluster's Ray: its Jobs API, behind one small protocol."""
