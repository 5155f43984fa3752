"""Chaos: the ingest under injected failures, and what has to be true afterwards."""
