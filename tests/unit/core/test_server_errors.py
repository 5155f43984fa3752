"""Texts of drivers and what we keep of them: code, name and one line that says what was wrong."""

from __future__ import annotations

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from chmv_assets.core.retry import decide_retry
from chmv_assets.core.server_errors import parse_server_error
from resources import clickhouse
from spark_jobs import connection

PREFIX = "Received ClickHouse exception, code: {code}, server response: Code: {code}. DB::Exception: "
SUFFIX = " (version 26.7.3.1 (official build)) (for url http://127.0.0.1:8123)"


@pytest.mark.parametrize(
    ("text", "code", "name", "message"),
    [
        (
            f"{PREFIX.format(code=60)}Table d.t does not exist. (UNKNOWN_TABLE){SUFFIX}",
            60, "UNKNOWN_TABLE", "Table d.t does not exist. (UNKNOWN_TABLE)",
        ),
        (
            f"{PREFIX.format(code=62)}Syntax error: failed at position 1: CREATE\n  TABLE t (version UInt32)\n. (SYNTAX_ERROR){SUFFIX}",
            62, "SYNTAX_ERROR", "Syntax error: failed at position 1: CREATE TABLE t (version UInt32) . (SYNTAX_ERROR)",
        ),
        (
            "Code: 279. DB::Exception: All connection tries failed. Log: \n\nCode: 210. DB::NetException: refused (NETWORK_ERROR)"
            "\n: While executing Remote. (ALL_CONNECTION_TRIES_FAILED)",
            279, "ALL_CONNECTION_TRIES_FAILED",
            "All connection tries failed. Log: Code: 210. DB::NetException: refused (NETWORK_ERROR) : While executing Remote. "
            "(ALL_CONNECTION_TRIES_FAILED)",
        ),
        ("HTTP driver received HTTP status 502 (for url http://h:1)", None, "", "HTTP driver received HTTP status 502"),
        ("Connection reset by peer", None, "", "Connection reset by peer"),
    ],
)  # fmt: skip
def test_code_name_and_message_are_read(text: str, code: int | None, name: str, message: str) -> None:
    error = parse_server_error(text)
    label = f" (code {code} {name})" if code else ""
    assert (error.code, error.code_name, str(error)) == (code, name, message + label)


def test_what_the_driver_knows_comes_first() -> None:
    error = parse_server_error("The ClickHouse server returned an error", 241, "MEMORY_LIMIT_EXCEEDED")
    assert (error.code, error.code_name) == (241, "MEMORY_LIMIT_EXCEEDED")


def test_a_fence_far_down_a_long_text_is_still_seen() -> None:
    text = (
        f"{PREFIX.format(code=469)}\nConstraint\n`chmv_fence` for table d.t is violated. (VIOLATED_CONSTRAINT){SUFFIX}"
    )
    error = parse_server_error(text)
    assert decide_retry(error.code, str(error)).retriable


@pytest.mark.parametrize(
    "error",
    [
        DatabaseError(f"{PREFIX.format(code=60)}No. (UNKNOWN_TABLE){SUFFIX}", code=60, name="UNKNOWN_TABLE"),
        DatabaseError("The ClickHouse server returned an error", code=252),
        OperationalError("Failed to read response data from server"),
        OperationalError(" \n"),
    ],
)
def test_every_process_reads_the_same(error: DatabaseError) -> None:
    ours, sparks = clickhouse.server_error(error), connection.server_error(error)
    assert (str(ours), ours.code, ours.code_name) == (str(sparks), sparks.code, sparks.code_name)
    assert str(ours)


def test_an_error_of_the_transport_has_no_code() -> None:
    error = connection.server_error(ConnectionResetError())
    assert (str(error), error.code) == ("ConnectionResetError", None)
