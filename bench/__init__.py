"""Benchmarks: ratios against the plain alternative, measured in the same run. Never timed tests."""
