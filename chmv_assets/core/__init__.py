"""The functional core: stdlib and sqlglot only. No clock, environment, driver, Dagster or Spark."""
