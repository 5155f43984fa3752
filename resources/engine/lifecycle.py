"""Start, find and stop: the engine as callers see it.

Invariant: everything that changes a data folder's server happens under that folder's guard, and the record is written
as soon as the process exists, so that a crash of the starter leaves a server that the next call finds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from chmv_assets.core.errors import EngineError
from resources.engine.config import render_config, render_users
from resources.engine.locate import check_password, choose_kind, find_program, remembered_kind
from resources.engine.lock import (
    EngineRecord,
    command_line,
    hold_guard,
    is_alive,
    process_start,
    read_record,
    write_atomically,
    write_record,
)
from resources.engine.model import (
    LOOPBACK,
    PASSWORD_VARIABLE,
    URL_VARIABLE,
    USER_VARIABLE,
    DataLayout,
    EngineInfo,
    EngineOptions,
    LocalKind,
    default_data_dir,
)
from resources.engine.ports import choose_ports, find_listener
from resources.engine.probe import external_engine, ping, read_version
from resources.engine.process import clear_log_tables, read_tail, server_command, spawn, terminate
from resources.engine.report import Report

_STOP_SECONDS = 20.0
_PORT_ATTEMPTS = 3
_PORT_TAKEN = "Address already in use"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOutcome:
    """How a stop ended; `killed` means that the server did not end by itself within its time."""

    result: Literal["stopped", "killed", "not_running"]
    pid: int | None = None


def ensure_engine(
    options: EngineOptions | None = None, *, environ: Mapping[str, str] | None = None, report: Report | None = None
) -> EngineInfo:
    """The server to use: the configured external one, else the one on the data folder, started if need be."""
    external = describe_external(environ)
    return external if external is not None else start_engine(options, environ=environ, report=report)


def describe_engine(data_dir: Path | None = None, *, environ: Mapping[str, str] | None = None) -> EngineInfo | None:
    """The server that `ensure_engine` would use if it is there already; starts nothing."""
    return describe_external(environ) or find_engine(data_dir, environ=environ)


def describe_external(environ: Mapping[str, str] | None = None) -> EngineInfo | None:
    """The configured external server, asked whether it is there; None when none is configured."""
    named = external_engine(environ)
    if named is None:
        return None
    if not ping(named.url, timeout_seconds=10.0):
        raise EngineError(
            f"engine {named.url}: found no answer to /ping but wanted a ClickHouse server. {URL_VARIABLE} names it. "
            f"Start that server, correct the variable, or unset it for the embedded server."
        )
    return replace(named, version=read_version(named.url, named.user, environ))


def find_engine(data_dir: Path | None = None, *, environ: Mapping[str, str] | None = None) -> EngineInfo | None:
    """The server that runs on the data folder and answers, or None."""
    layout = DataLayout(_resolve(data_dir, environ))
    record = read_record(layout.record)
    if record is None or not is_alive(record) or not ping(_url(record.http_port)):
        return None
    return _info(record, started=False)


def start_engine(
    options: EngineOptions | None = None, *, environ: Mapping[str, str] | None = None, report: Report | None = None
) -> EngineInfo:
    """Start a local server on the data folder, or return the one that runs there (then `started` is False)."""
    env = dict(os.environ if environ is None else environ)
    wanted = options or EngineOptions(data_dir=default_data_dir(env))
    layout = DataLayout(_resolve(wanted.data_dir, env))
    kind = choose_kind(layout, env)
    check_password(kind, env)
    if running := find_engine(layout.root):
        return running
    program = find_program(kind, env, report)
    _make_folders(layout)
    with hold_guard(layout.guard, wanted.timeout_seconds + 30, purpose="starting the engine"):
        record = _live_record(layout)
        if record is not None:
            _wait_for_answer(record, layout, wanted.timeout_seconds)
            return _info(record, started=False)
        write_atomically(layout.kind, kind + "\n")
        return _start(kind, program, layout, wanted, env)


def stop_engine(
    data_dir: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    timeout_seconds: float = _STOP_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> StopOutcome:
    """End the server on the data folder. Running queries get 5 s; what was inserted stays."""
    layout = DataLayout(_resolve(data_dir, environ))
    if not layout.record.exists() and not layout.store.is_dir():  # not a data folder: leave no lock file in it
        return StopOutcome(result="not_running")
    with hold_guard(layout.guard, 90.0, purpose="stopping the engine"):
        record = _live_record(layout)
        result: Literal["stopped", "killed", "not_running"] = "not_running"
        if record is not None:
            result = terminate(record.pid, timeout_seconds, sleep=sleep)
        layout.record.unlink(missing_ok=True)
    return StopOutcome(result=result, pid=None if record is None else record.pid)


def connection_env(info: EngineInfo) -> dict[str, str]:
    """Variables that make a child process use this server. The password, if any, is inherited, not repeated."""
    return {URL_VARIABLE: info.url, USER_VARIABLE: info.user}


def _start(
    kind: LocalKind, program: Path, layout: DataLayout, options: EngineOptions, environ: Mapping[str, str]
) -> EngineInfo:
    chosen_by_us = not (options.http_port and options.tcp_port)
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        http_port, tcp_port = choose_ports(options.http_port, options.tcp_port)
        write_atomically(layout.config, render_config(layout, kind, http_port, tcp_port))
        write_atomically(layout.users, render_users(with_password=bool(environ.get(PASSWORD_VARIABLE))))
        if kind == "embedded":
            clear_log_tables(layout)
        (layout.logs / "error.log").unlink(missing_ok=True)
        pid = spawn(server_command(kind, program, layout, http_port, tcp_port), layout, environ)
        record = _new_record(pid, http_port, tcp_port, layout, kind)
        write_record(layout.record, record)
        try:
            _wait_for_answer(record, layout, options.timeout_seconds)
            _check_listener(record)
        except EngineError as error:
            terminate(pid, 5.0)
            layout.record.unlink(missing_ok=True)
            if chosen_by_us and attempt < _PORT_ATTEMPTS and _PORT_TAKEN in str(error):
                continue
            raise
        record = replace(record, version=read_version(_url(http_port), "default", environ))
        write_record(layout.record, record)
        return _info(record, started=True)
    raise AssertionError("the last attempt returns or raises")


def _new_record(pid: int, http_port: int, tcp_port: int, layout: DataLayout, kind: LocalKind) -> EngineRecord:
    return EngineRecord(
        pid=pid,
        process_started=process_start(pid) or "",
        http_port=http_port,
        tcp_port=tcp_port,
        data_dir=str(layout.root),
        kind=kind,
        version="",
    )


def _wait_for_answer(record: EngineRecord, layout: DataLayout, timeout_seconds: float) -> None:
    give_up = time.monotonic() + timeout_seconds
    while not ping(_url(record.http_port), timeout_seconds=1.0):
        if not is_alive(record):
            raise EngineError(
                f"engine: found that its process {record.pid} ended but wanted a server on {layout.root}. "
                f"The last lines of its logs ({layout.logs}):\n{read_tail(layout)}"
            )
        if time.monotonic() > give_up:
            raise EngineError(
                f"engine: found process {record.pid} without an answer on port {record.http_port} but wanted one "
                f"within {timeout_seconds:.0f} s. Run `chmv engine stop` and start again. "
                f"The last lines of its logs ({layout.logs}):\n{read_tail(layout)}"
            )
        time.sleep(0.05)


def _check_listener(record: EngineRecord) -> None:
    """Make sure that the answer came from our process and not from a server that took the port a moment before."""
    holder = find_listener(record.http_port)
    if holder not in (None, record.pid):
        raise EngineError(
            f"port {record.http_port}: found process {holder} but wanted our server {record.pid} ({_PORT_TAKEN}). "
            f"It was taken while the engine started. Start again."
        )


def _live_record(layout: DataLayout) -> EngineRecord | None:
    """The record of the process that lives on the folder, also when `engine.json` is lost or damaged."""
    record = read_record(layout.record)
    if record is None:
        record = _recover_record(layout)
        if record is not None:
            write_record(layout.record, record)
    return record if record is not None and is_alive(record) else None


def _recover_record(layout: DataLayout) -> EngineRecord | None:
    """Rebuild the record from ClickHouse's own status file and the arguments of the process that it names."""
    try:
        status = (layout.store / "status").read_text(encoding="utf-8")
        pid = int(status.partition("PID:")[2].split()[0])
        config = layout.config.read_text(encoding="utf-8")
        ports = [int(config.partition(f"<{name}>")[2].partition("<")[0]) for name in ("http_port", "tcp_port")]
    except (OSError, ValueError, IndexError):
        return None
    if f"--config-file={layout.config}" not in command_line(pid):
        return None
    record = _new_record(pid, ports[0], ports[1], layout, remembered_kind(layout) or "embedded")
    return replace(record, version=read_version(_url(ports[0]), "default"))


def _make_folders(layout: DataLayout) -> None:
    try:
        layout.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (
            layout.logs,
            layout.store,
            layout.store / "tmp",
            layout.store / "user_files",
            layout.config.parent,
        ):
            folder.mkdir(exist_ok=True)
    except OSError as error:
        raise EngineError(
            f"data folder {layout.root}: found `{error.strerror or error}` but wanted a folder that can be written. "
            f"The server keeps its tables there. Name another folder with --data."
        ) from error


def _info(record: EngineRecord, *, started: bool) -> EngineInfo:
    return EngineInfo(
        kind=record.kind,
        url=_url(record.http_port),
        http_port=record.http_port,
        tcp_port=record.tcp_port,
        pid=record.pid,
        data_dir=Path(record.data_dir),
        version=record.version,
        started=started,
    )


def _url(http_port: int) -> str:
    return f"http://{LOOPBACK}:{http_port}"


def _resolve(data_dir: Path | None, environ: Mapping[str, str] | None) -> Path:
    return (data_dir or default_data_dir(environ)).expanduser().absolute()
