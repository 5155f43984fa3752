"""chmv: a Dagster code location that runs ClickHouse materialized-view pipelines.

`definitions` is the entry point for Dagster, `cli` for the shell, `core` holds everything that is pure.
Importing this package imports none of them: run workers and Spark executors load only what they use.
"""

__version__ = "0.1.0"
