"""How Spark's driver and workers reach ClickHouse: options without secrets, a client, errors with the server's code, retries.

Invariant: a password never is an option (Spark shows options in plans and logs); it comes from the environment of the process
that connects. Only statements that are no-ops when repeated go through `run_retrying`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from urllib3.exceptions import HTTPError

from chmv_assets.core.errors import ServerError, WriteRefused
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import Statement
from chmv_assets.core.retry import backoff_seconds, client_timeout_seconds, decide_retry
from chmv_assets.core.server_errors import parse_server_error

T = TypeVar("T")
URL_VARIABLE = "CHMV_CLICKHOUSE_URL"
USER_VARIABLE = "CHMV_CLICKHOUSE_USER"
PASSWORD_VARIABLE = "CHMV_CLICKHOUSE_PASSWORD"  # noqa: S105 - the name of a variable, not a secret
OPTIONS = frozenset(
    {"url", "user", "table", "batch", "owner", "cluster", "columns", "hold", "splitrows", "pushdown", "path"}
)
_MAX_EXECUTION_SECONDS = 300
# What the driver raises: its own errors, and its transport's where an answer breaks off in the middle.
DRIVER_ERRORS = (ClickHouseError, HTTPError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where the server is and as whom we speak; safe to pickle and to print."""

    url: str
    user: str = ""

    def connect(self, environ: Mapping[str, str] | None = None) -> Client:
        """A client of its own; not for sharing between threads."""
        env = os.environ if environ is None else environ
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        try:
            return clickhouse_connect.get_client(
                host=parts.hostname or "localhost",
                port=parts.port or (8443 if secure else 8123),
                interface="https" if secure else "http",
                username=self.user or env.get(USER_VARIABLE) or "default",
                password=env.get(PASSWORD_VARIABLE, ""),
                send_receive_timeout=client_timeout_seconds(_MAX_EXECUTION_SECONDS),
                connect_timeout=10,
                autogenerate_session_id=False,
                client_name="chmv-spark",
            )
        except DRIVER_ERRORS as error:
            raise server_error(error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and how patiently to try again; injectable, so that tests do not wait."""

    limit: int = 12
    sleep: Callable[[float], None] = field(default=time.sleep)
    random: Callable[[], float] = field(default=random.random)


def read_connection(options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Connection:
    """The connection that the options (or the environment) name; secrets and unknown options are refused."""
    env = os.environ if environ is None else environ
    given = {key.lower() for key in options}
    if "password" in given:
        raise WriteRefused(
            "option password: found one but wanted none. Spark shows options in plans, logs and its UI. "
            f"Set {PASSWORD_VARIABLE} in the environment of the driver and of the executors "
            f"(spark.executorEnv.{PASSWORD_VARIABLE})."
        )
    if unknown := sorted(given - OPTIONS):
        raise WriteRefused(
            f"option {', '.join(unknown)}: not known but wanted one of {', '.join(sorted(OPTIONS - {'path'}))}. "
            "A misspelt option would be ignored in silence. Correct its name."
        )
    url = options.get("url") or env.get(URL_VARIABLE) or ""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if not url or parts.username or parts.password:
        found = "a user or password in it" if url else "nothing"
        raise WriteRefused(
            f"option url: found {found} but wanted http(s)://host:port. It says which server and is printed. "
            f"Set the option or {URL_VARIABLE}; user and password go into {USER_VARIABLE} and {PASSWORD_VARIABLE}."
        )
    return Connection(url=parts.geturl(), user=options.get("user") or "")


def read_table(options: Mapping[str, str]) -> QName:
    """The table that the options name, with its database."""
    text = options.get("table") or ""
    try:
        return parse_qname(text, "default")
    except ValueError as error:
        raise WriteRefused(
            f"option table: found {text!r} but wanted `database.table`. {error}. Set it with .option('table', …)."
        ) from error


def server_error(error: Exception) -> ServerError:
    """A driver's error as ours, with the server's code; without a code the connection broke."""
    code, name = getattr(error, "code", None), getattr(error, "name", None)
    return parse_server_error(str(error).strip() or type(error).__name__, code, name)


def fetch_rows(client: Client, statement: Statement) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    try:
        result = client.query(statement.sql, parameters=dict(statement.parameters), settings=dict(statement.settings))
    except DRIVER_ERRORS as error:
        raise server_error(error) from error
    return [tuple(row) for row in result.result_rows]


def run_statement(client: Client, statement: Statement) -> None:
    """Run a statement that answers nothing."""
    try:
        client.command(statement.sql, parameters=dict(statement.parameters), settings=dict(statement.settings))
    except DRIVER_ERRORS as error:
        raise server_error(error) from error


def plain(sql: str, **parameters: Any) -> Statement:
    """A statement without settings."""
    return Statement(sql=sql, parameters=parameters, settings={})


def run_retrying(call: Callable[[], T], retry: Retry) -> T:
    """Call until it works or the error will not pass by itself; the last error is raised as it came."""
    for attempt in range(1, retry.limit + 1):
        try:
            return call()
        except ServerError as error:
            if attempt == retry.limit or not decide_retry(error.code, str(error)).retriable:
                raise
            retry.sleep(backoff_seconds(attempt, retry.random))
    raise AssertionError("unreachable: the last attempt returns or raises")
