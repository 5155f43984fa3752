"""Sensors: read, decide purely, request runs. They never write to ClickHouse."""
