"""Two questions to a server over HTTP: does it answer, and which version is it.

Plain `http.client`, so that neither a proxy variable nor a driver stands between; every other question goes through
`resources.clickhouse`. Credentials travel in headers.
"""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from chmv_assets.core.errors import EngineError
from resources.engine.model import DEFAULT_USER, PASSWORD_VARIABLE, URL_VARIABLE, USER_VARIABLE, EngineInfo


def ping(url: str, timeout_seconds: float = 2.0) -> bool:
    """Whether a ClickHouse answers at the URL."""
    try:
        status, body = _request(url, "/ping", {}, timeout_seconds)
    except (OSError, http.client.HTTPException):
        return False
    return status == 200 and body.startswith("Ok")


def read_version(url: str, user: str, environ: Mapping[str, str] | None = None, timeout_seconds: float = 5.0) -> str:
    """The server's version; empty when it does not tell us."""
    env = os.environ if environ is None else environ
    headers = {"X-ClickHouse-User": user, "X-ClickHouse-Key": env.get(PASSWORD_VARIABLE, "")}
    try:
        status, body = _request(url, "/?query=SELECT%20version()", headers, timeout_seconds)
    except (OSError, http.client.HTTPException):
        return ""
    return body.strip() if status == 200 else ""


def external_engine(environ: Mapping[str, str] | None = None) -> EngineInfo | None:
    """The server that the environment names, not yet asked anything; None when it names none."""
    env = os.environ if environ is None else environ
    url = env.get(URL_VARIABLE, "").strip().rstrip("/")
    if not url:
        return None
    parts = _split(url)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise EngineError(
            f"engine {URL_VARIABLE}: found credentials or parameters in the URL but wanted scheme, host and port only. "
            f"URLs end up in logs. Put them into {USER_VARIABLE} and {PASSWORD_VARIABLE}."
        )
    port = _port(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
        raise EngineError(
            f"engine {URL_VARIABLE}: found something else but wanted http://host:port or https://host:port. "
            f"chmv speaks ClickHouse's HTTP interface. Correct the variable, or unset it for the embedded server."
        )
    return EngineInfo(
        kind="external",
        url=url,
        http_port=port,
        tcp_port=None,
        pid=None,
        data_dir=None,
        version="",
        user=env.get(USER_VARIABLE, "") or DEFAULT_USER,
    )


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult(
            "", "", "", "", ""
        )  # refused by the caller, which does not repeat it: it may hold a password


def _port(url: str) -> int | None:
    parts = _split(url)
    try:
        return parts.port or (8443 if parts.scheme == "https" else 8123)
    except ValueError:
        return None


def _request(url: str, path: str, headers: Mapping[str, str], timeout_seconds: float) -> tuple[int, str]:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", _port(url), timeout=timeout_seconds)
    with contextlib.closing(connection):
        connection.request("GET", parts.path.rstrip("/") + path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(4096).decode("utf-8", "replace")
