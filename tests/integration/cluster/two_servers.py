"""Two real servers as two shards, and a server that writes down what a cluster would be told.

Neither has a Keeper, so nothing is Replicated and ON CLUSTER cannot be carried out. `Recorder` notes each statement as chmv sends it, and
runs it without these two on a real server that is the only replica of its shard: there it means the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resources.clickhouse import Endpoint, Server

_ON_CLUSTER = re.compile(r" ON CLUSTER `[^`]+`")
_REPLICATED = re.compile(r"Replicated(\w*MergeTree)\('[^']*', '[^']*'(?:, )?")
_TOLD = (
    "alter_sync",
    "distributed_ddl_output_mode",
    "insert_quorum",
    "insert_quorum_parallel",
    "insert_quorum_timeout",
)
_NAMELESS = (  # what differs from run to run
    (re.compile(r"(scratch|storage|replay)\.[0-9a-f]{12,20}\b"), r"\1.<id>"),
    (re.compile(r"(kept\.[^`]*)\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`"), r"\1.<uuid>`"),
    (re.compile(r"(kept|trial)\.[0-9a-f]{8}\b"), r"\1.<id>"),
    (re.compile(r"__chmv_fence_[0-9a-f]+"), "__chmv_fence_<id>"),
    (re.compile(r"fromUnixTimestamp64Milli\(\d+\)"), "fromUnixTimestamp64Milli(<ms>)"),
    (re.compile(r"lock\.[0-9a-f]{24}\.\d{12}"), "lock.<name>.<generation>"),
    (re.compile(r"COMMENT '\{.*?\}'"), "COMMENT '<who>'"),
    (re.compile(r"made by chmv [0-9a-f]{16}"), "made by chmv <mark>"),
    (re.compile(r"probe\.([^`]*)\.\d+`"), r"probe.\1.<n>`"),
)


def config_of(first: int, second: int) -> str:
    """The part of the configuration that both servers have."""

    def shard(port: int) -> str:
        replica = f"<replica><host>127.0.0.1</host><port>{port}</port></replica>"
        return f"<shard><internal_replication>true</internal_replication>{replica}</shard>"

    clusters = {"all": shard(first) + shard(second), "main": shard(first), "other": shard(second)}
    listed = "".join(f"<{name}>{text}</{name}>" for name, text in clusters.items())
    return (
        "<clickhouse><background_distributed_schedule_pool_size>2</background_distributed_schedule_pool_size>"
        f"<remote_servers>{listed}</remote_servers></clickhouse>"
    )


@dataclass(frozen=True)
class Pair:
    """Both servers, and where their native listeners are."""

    first: Server
    second: Server
    ports: list[int]

    def both(self, sql: str) -> None:
        for server in (self.first, self.second):
            server.command(sql)


class Recorder(Server):
    """A connection that notes what it is told; ON CLUSTER and replication are left out of what it does."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.said: list[tuple[str, dict[str, Any]]] = []  # as they were sent, with their values
        self.noted: list[str] = []  # the same without what is different each time

    def command(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> str:
        if not sql.startswith("KILL "):
            self.said.append((sql, dict(parameters or {})))
            told = {key: value for key, value in (settings or {}).items() if key in _TOLD}
            notes = f" -- {', '.join(f'{key} = {value}' for key, value in told.items())}" if told else ""
            self.noted.append(f"{nameless(sql)};{notes}")
        kept = {key: value for key, value in (settings or {}).items() if key not in _TOLD}
        return super().command(_REPLICATED.sub(r"\1(", _ON_CLUSTER.sub("", sql)), parameters, kept)


def nameless(sql: str) -> str:
    """A statement in one line, the same in every run."""
    text = " ".join(sql.split())
    for pattern, instead in _NAMELESS:
        text = pattern.sub(instead, text)
    return text
