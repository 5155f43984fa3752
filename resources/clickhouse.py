"""The client: one way to speak to ClickHouse, over HTTP, with errors that keep the server's code and query id.

`Server` is what the rest of `resources` takes; `clickhouse_resource` is its Dagster face. Values travel as bound parameters,
identifiers through `core.names`. The password lives in the environment and in the driver, nowhere else.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from chmv_assets.core.errors import EngineError, ServerError
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import Statement
from chmv_assets.core.secrets import mask_known, mask_values
from chmv_assets.core.server_errors import parse_server_error
from chmv_assets.core.system_tables import all_replicas_settings
from resources.engine import EngineInfo, ensure_engine
from resources.engine.model import DEFAULT_USER, PASSWORD_VARIABLE, URL_VARIABLE, USER_VARIABLE

KILL_SECONDS = 30.0
_known_settings: dict[tuple[str, str, frozenset[str]], frozenset[str]] = {}  # by address and version of the server
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server is and who we are there."""

    url: str
    user: str = "default"
    password: str = field(default="", repr=False)


def endpoint_from_environment(environ: Mapping[str, str] | None = None) -> Endpoint:
    """The configured server, or the embedded one, started if need be."""
    env = os.environ if environ is None else environ
    if env.get(URL_VARIABLE):
        return Endpoint(env[URL_VARIABLE], env.get(USER_VARIABLE) or DEFAULT_USER, env.get(PASSWORD_VARIABLE, ""))
    return endpoint_of(ensure_engine(environ=env), env)


def endpoint_of(info: EngineInfo, environ: Mapping[str, str] | None = None) -> Endpoint:
    """How to reach an engine that was found or started."""
    env = os.environ if environ is None else environ
    return Endpoint(info.url, info.user, env.get(PASSWORD_VARIABLE, ""))


def server_error(error: ClickHouseError, sql: str = "", password: str = "", query_id: str = "") -> ServerError:
    """A driver's error as ours, with the server's code and name, and without the secrets of the statement that it quotes.

    Where something was hidden, the driver's error must not come along as the cause: tracebacks print it.
    """
    code, name = getattr(error, "code", None), getattr(error, "name", None)
    text = str(error).strip() or type(error).__name__
    shown = mask_values(mask_known(text, sql), [password] if password else [])
    found = parse_server_error(shown, code, name, query_id)
    found.__cause__ = error if shown == text else None
    return found


class Server:
    """A connection with a handful of verbs. Not for sharing between threads."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        log_comment: Mapping[str, str] | None = None,
        timeout_seconds: int = 315,
        connect_seconds: int = 10,
    ) -> None:
        parts = urlsplit(endpoint.url if "//" in endpoint.url else f"http://{endpoint.url}")
        if parts.username or parts.password:
            raise EngineError(
                f"environment {URL_VARIABLE}: found a user or password in the URL but wanted neither. URLs end up in logs. "
                f"Put them into {USER_VARIABLE} and {PASSWORD_VARIABLE}."
            )
        self.endpoint = endpoint
        settings = {"log_comment": json.dumps(dict(log_comment))} if log_comment else {}
        try:
            self._client: Client = clickhouse_connect.get_client(
                host=parts.hostname or "localhost",
                port=parts.port or (8443 if parts.scheme == "https" else 8123),
                interface="https" if parts.scheme == "https" else "http",
                username=endpoint.user,
                password=endpoint.password,
                settings=settings,
                send_receive_timeout=timeout_seconds,
                connect_timeout=connect_seconds,
                autogenerate_session_id=False,
                client_name="chmv",
            )
        except ClickHouseError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: ClickHouseError) -> ServerError:
        found = server_error(error, password=self.endpoint.password)
        return ServerError(
            f"server {self.endpoint.url}: no usable answer ({found}). Is it up, and is {USER_VARIABLE} right? "
            "`chmv engine status` tells.",
            code=found.code,
            code_name=found.code_name,
        )

    @contextmanager
    def _errors_of(self, sql: str, query_id: str = "") -> Iterator[None]:
        """Errors of the driver inside as ours."""
        try:
            yield
        except UnicodeEncodeError:
            raise ServerError(
                "statement: found half a surrogate pair in it but wanted text that UTF-8 can carry. Nothing was sent. Correct the name or value."
            ) from None
        except ClickHouseError as error:
            failed = server_error(error, sql, self.endpoint.password, query_id)
            raise failed from failed.__cause__

    def rows(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a query and give its rows."""
        values = {**all_replicas_settings(sql), **(settings or {})}
        with self._errors_of(sql):
            result = self._client.query(sql, parameters=dict(parameters or {}), settings=values)
        return [tuple(row) for row in result.result_rows]

    def rows_if_there(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """As `rows`; none if the table or its database does not exist."""
        try:
            return self.rows(sql, parameters, settings)
        except ServerError as error:
            if error.is_missing:
                return []
            raise

    def command(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> str:
        """Run a statement to its end; gives the query id.

        Who is interrupted meanwhile (Ctrl-C, a cancelled run) leaves no statement behind that goes on without him.
        """
        query_id = str(uuid4())
        values = {**(settings or {}), "query_id": query_id}
        try:
            with self._errors_of(sql, query_id):
                self._client.command(sql, parameters=dict(parameters or {}), settings=values)
        except BaseException as error:
            if not isinstance(error, Exception):
                self._kill(query_id)
            raise
        return query_id

    def fetch(self, statement: Statement) -> list[tuple[Any, ...]]:
        """The rows of one of our own statements."""
        return self.rows(statement.sql, statement.parameters, statement.settings)

    def fetch_if_there(self, statement: Statement) -> list[tuple[Any, ...]]:
        """As `fetch`; none if the table or its database does not exist."""
        return self.rows_if_there(statement.sql, statement.parameters, statement.settings)

    def run(self, statement: Statement) -> str:
        """Run one of our own statements to its end; gives the query id."""
        return self.command(statement.sql, statement.parameters, statement.settings)

    def insert(
        self,
        table: QName,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Write rows as data: values of any length, where a bound parameter has at most 128 KiB (http_max_field_value_size)."""
        with self._errors_of(f"INSERT INTO {table.sql}"):
            self._client.insert(
                table.table, rows, column_names=list(columns), database=table.database, settings=dict(settings or {})
            )

    def _kill(self, query_id: str) -> None:
        """End a statement and wait until it has ended: the server does not notice that nobody waits for its answer."""
        deadline = time.monotonic() + KILL_SECONDS
        running = 1
        with suppress(ServerError), Server(self.endpoint) as other:  # this connection is in the middle of something
            while running and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)  # one that is just being sent has to show up first
                other.command("KILL QUERY WHERE query_id = {id:String} ASYNC", {"id": query_id})
                found = other.rows(
                    "SELECT count() FROM system.processes WHERE query_id = {id:String}", {"id": query_id}
                )
                running = int(found[0][0])

    def text(self, sql: str, parameters: Mapping[str, Any] | None = None) -> str:
        """Run a statement whose answer is text, such as EXPLAIN AST."""
        with self._errors_of(sql):
            return self._client.raw_query(sql, parameters=dict(parameters or {}), fmt="TSVRaw").decode()

    @property
    def driver(self) -> Client:
        """The driver itself, for bulk work that needs more than these verbs."""
        return self._client

    @property
    def version(self) -> str:
        return str(self._client.server_version)

    @cached_property
    def timezone(self) -> str:
        """The server's zone; asked once per connection, it does not change while a server runs."""
        return str(self.rows("SELECT serverTimezone()")[0][0])

    def knows_settings(self, names: Sequence[str]) -> set[str]:
        """Which of these settings this server has; versions differ. Asked once per process and version."""
        key = (self.endpoint.url, self.version, frozenset(names))
        if key not in _known_settings:
            found = self.rows(
                "SELECT name FROM system.settings WHERE name IN {names:Array(String)}", {"names": sorted(key[2])}
            )
            _known_settings[key] = frozenset(str(name) for (name,) in found)
        return set(_known_settings[key])

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
