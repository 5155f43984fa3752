"""The server's configuration files as text.

Pure rendering. What it promises: loopback only, only the three logs that chmv reads, flushed rarely enough for an idle
server to stay idle, caches sized for a small machine. Files in `config.d/` and `users.d/` beside the generated ones are
merged by ClickHouse itself and are never touched by chmv.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from resources.engine.model import DEFAULT_USER, LOOPBACK, PASSWORD_HASH_VARIABLE, DataLayout, LocalKind

LOG_TABLES = ("query_log", "query_views_log", "part_log")
FLUSH_MILLISECONDS = 7500
_MARK_CACHE_BYTES = 256 * 1024 * 1024
# clickhouse-local's own defaults are 2 and 2: too few for merges beside a rebuild, and the schedule pool of 2 logs a
# "Temporarily pause scheduling" warning for every insert (26.7). A real server has good defaults of its own, and would
# refuse tables with so small a merge pool.
_EMBEDDED_POOLS = (("background_pool_size", 4), ("background_schedule_pool_size", 16))


def render_config(layout: DataLayout, kind: LocalKind, http_port: int, tcp_port: int) -> str:
    """The main configuration for one start."""
    pools = _EMBEDDED_POOLS if kind == "embedded" else ()
    lines = [
        "<clickhouse>",
        "  <!-- Written by chmv at every start; put your own settings into config.d/ beside this file. -->",
        "  <logger>",
        "    <level>warning</level>",
        f"    <log>{_text(layout.logs / 'server.log')}</log>",
        f"    <errorlog>{_text(layout.logs / 'error.log')}</errorlog>",
        "    <size>20M</size>",
        "    <count>3</count>",
        "  </logger>",
        f"  <listen_host>{LOOPBACK}</listen_host>",
        f"  <http_port>{http_port}</http_port>",
        f"  <tcp_port>{tcp_port}</tcp_port>",
        f"  <path>{_text(layout.store)}/</path>",
        f"  <tmp_path>{_text(layout.store / 'tmp')}/</tmp_path>",
        f"  <user_files_path>{_text(layout.store)}/user_files/</user_files_path>",
        f"  <users_config>{_text(layout.users)}</users_config>",
        "  <default_profile>default</default_profile>",
        "  <default_database>default</default_database>",
        f"  <mark_cache_size>{_MARK_CACHE_BYTES}</mark_cache_size>",
        "  <max_server_memory_usage_to_ram_ratio>0.8</max_server_memory_usage_to_ram_ratio>",
        *(f"  <{name}>{size}</{name}>" for name, size in pools),
        *(line for table in LOG_TABLES for line in _log_table(table)),
        "</clickhouse>",
    ]
    return "\n".join(lines) + "\n"


def render_users(*, with_password: bool) -> str:
    """The users file: one user, from this machine only.

    With a password only its hash is given, by the server's environment: ClickHouse puts a variable's text into the XML
    unescaped, so a password as such could break the file (26.7).
    """
    password = (
        f'<password_sha256_hex from_env="{PASSWORD_HASH_VARIABLE}"/>' if with_password else "<password></password>"
    )
    return f"""<clickhouse>
  <!-- Written by chmv at every start; put more users, profiles and grants into users.d/ beside this file. -->
  <profiles>
    <default></default>
  </profiles>
  <quotas>
    <default></default>
  </quotas>
  <users>
    <{DEFAULT_USER}>
      {password}
      <networks><ip>127.0.0.1</ip><ip>::1</ip></networks>
      <profile>default</profile>
      <quota>default</quota>
      <access_management>1</access_management>
    </{DEFAULT_USER}>
  </users>
</clickhouse>
"""


def embedded_arguments(layout: DataLayout, http_port: int, tcp_port: int) -> list[str]:
    """Arguments of clickhouse-local that make it a server until its standard input ends.

    The last statement reads standard input, which costs nothing while nothing comes; when the pipe is closed the query
    ends and the library shuts down in order. `--log-level` is needed because clickhouse-local ignores `<level>`.
    """
    return [
        f"--config-file={layout.config}",
        f"--path={layout.store}",
        "--log-level=warning",
        f"--listen_host={LOOPBACK}",
        f"--http_port={http_port}",
        f"--tcp_port={tcp_port}",
        "--query",
        "SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP; "
        "SELECT count() FROM file(stdin, 'LineAsString', 'line String') FORMAT Null",
    ]


def _log_table(table: str) -> list[str]:
    return [
        f"  <{table}>",
        "    <database>system</database>",
        f"    <table>{table}</table>",
        "    <partition_by>toYYYYMM(event_date)</partition_by>",
        f"    <flush_interval_milliseconds>{FLUSH_MILLISECONDS}</flush_interval_milliseconds>",
        f"  </{table}>",
    ]


def _text(value: object) -> str:
    return escape(str(value))
