"""Sending an alert to a webhook: one POST of JSON, five seconds, one retry.

The address is a secret (whoever has it can post): it is taken from the environment where it is used, kept nowhere, and no part of it
is in what is returned, logged or raised. What an alert says belongs to whoever sends it.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

ALERT_VARIABLE = "CHMV_ALERT_URL"
UI_VARIABLE = "CHMV_UI_URL"
TIMEOUT_SECONDS = 5.0
RETRY_AFTER_SECONDS = 1.0
_TRIES = 2


def alerts_on(environ: Mapping[str, str]) -> bool:
    """Whether there is somebody to tell.

    >>> alerts_on({"CHMV_ALERT_URL": "https://hooks.example/x"}), alerts_on({"CHMV_ALERT_URL": " "}), alerts_on({})
    (True, False, False)
    """
    return bool(environ.get(ALERT_VARIABLE, "").strip())


def ui_link(path: str, environ: Mapping[str, str] | None = None) -> str:
    """A page of the Dagster UI; only its path if nobody said where the UI is.

    >>> ui_link("/runs/7", {"CHMV_UI_URL": "https://dagster.example/"}), ui_link("/runs/7", {})
    ('https://dagster.example/runs/7', '/runs/7')
    """
    return (os.environ if environ is None else environ).get(UI_VARIABLE, "").strip().rstrip("/") + path


def send_alert(
    alert: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Post an alert; gives nothing if it arrived, else why not. Never raises."""
    url = (os.environ if environ is None else environ).get(ALERT_VARIABLE, "").strip()
    if _scheme(url) not in ("http", "https"):
        return f"{ALERT_VARIABLE} is no http or https address"
    body = json.dumps(dict(alert), default=str).encode()
    problem = ""
    for attempt in range(_TRIES):
        if attempt:
            sleep(RETRY_AFTER_SECONDS)
        problem, again = _post(url, body, timeout_seconds)
        if not problem or not again:
            return problem
    return f"{problem}, tried {_TRIES} times"


def _scheme(url: str) -> str:
    try:
        return urlsplit(url).scheme
    except ValueError:
        return ""


def _post(url: str, body: bytes, timeout_seconds: float) -> tuple[str, bool]:
    """What went wrong, in words without the address, and whether another try may help."""
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "chmv"}
    try:
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310  the scheme was looked at
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:  # noqa: S310
            answer.read(1024)
    except urllib.error.HTTPError as error:
        with error:
            return f"the webhook answered with status {error.code}", error.code >= 500 or error.code == 429
    except (OSError, http.client.HTTPException, ValueError) as error:  # their texts may hold the address
        return f"the webhook could not be reached ({_kind(error)})", not isinstance(
            error, (http.client.InvalidURL, ValueError)
        )
    return "", False


def _kind(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    return type(reason if isinstance(reason, BaseException) else error).__name__
