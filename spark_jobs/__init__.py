"""Spark jobs. They run on executors, so they see only `chmv_assets.core`."""
