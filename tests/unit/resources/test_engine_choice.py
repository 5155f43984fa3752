"""Which server is used: external, binary or embedded; ports; folders; what the environment says."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from chmv_assets.core.errors import EngineError
from resources.engine import (
    EngineInfo,
    EngineOptions,
    connection_env,
    default_data_dir,
    find_engine,
    ports,
    start_engine,
    stop_engine,
)
from resources.engine.lifecycle import describe_external
from resources.engine.locate import choose_kind
from resources.engine.model import DataLayout
from resources.engine.ports import choose_ports, find_listener, is_free
from resources.engine.probe import external_engine
from resources.toolchain import cache_dir


def test_data_folder_comes_from_the_environment_or_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert default_data_dir({}) == Path("/.chmv/engine")
    assert default_data_dir({"CHMV_DATA_DIR": "/x/y"}) == Path("/x/y")
    assert default_data_dir({"CHMV_DATA_DIR": "rel"}) == Path("/rel")


def test_cache_folder_follows_chmv_then_xdg_then_home() -> None:
    assert cache_dir({"CHMV_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c")
    assert cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/chmv")
    assert cache_dir({"XDG_CACHE_HOME": "relative"}) == cache_dir({}) == Path.home() / ".cache" / "chmv"


@pytest.mark.parametrize(
    ("url", "port"),
    [("http://ch:8124", 8124), ("http://ch/", 8123), ("https://ch", 8443), ("http://[::1]:1", 1), (" http://a:2/ ", 2)],
)
def test_external_server_is_taken_from_the_environment(url: str, port: int) -> None:
    info = external_engine({"CHMV_CLICKHOUSE_URL": url, "CHMV_CLICKHOUSE_USER": "etl"})
    assert info is not None
    assert (info.kind, info.http_port, info.user, info.pid, info.data_dir) == ("external", port, "etl", None, None)
    assert connection_env(info) == {"CHMV_CLICKHOUSE_URL": url.strip().rstrip("/"), "CHMV_CLICKHOUSE_USER": "etl"}


def test_nothing_configured_is_no_external_server() -> None:
    assert external_engine({}) is None
    assert external_engine({"CHMV_CLICKHOUSE_URL": " "}) is None


@pytest.mark.parametrize(
    "url",
    ["http://u:hunter2@ch:8123", "u:hunter2@ch:8123", "http://ch:8123/?password=hunter2", "clickhouse://ch:9000", "ch:8123",
     "http://", "http://ch:port", "http://ch:99999", "http://[hunter2", "http://ch#hunter2"],
)  # fmt: skip
def test_unusable_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(EngineError, match="CHMV_CLICKHOUSE_URL") as error:
        external_engine({"CHMV_CLICKHOUSE_URL": url})
    assert "hunter2" not in str(error.value)


def test_silent_external_server_is_an_error_that_names_the_variable() -> None:
    with pytest.raises(EngineError, match=r"found no answer to /ping.*CHMV_CLICKHOUSE_URL"):
        describe_external({"CHMV_CLICKHOUSE_URL": "http://127.0.0.1:1"})


def test_kind_follows_the_folder_then_the_environment_then_path(tmp_path: Path) -> None:
    binary = tmp_path / "bin" / "clickhouse"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    with_binary, without = {"PATH": str(binary.parent)}, {"PATH": str(tmp_path)}
    layout = DataLayout(tmp_path)
    assert choose_kind(layout, with_binary) == "binary"
    assert choose_kind(layout, without) == "embedded"
    assert choose_kind(layout, {**with_binary, "CHMV_ENGINE": "embedded"}) == "embedded"
    layout.kind.write_text("embedded\n")
    assert choose_kind(layout, with_binary) == "embedded"
    with pytest.raises(EngineError, match="found data of the embedded engine but wanted binary"):
        choose_kind(layout, {**with_binary, "CHMV_ENGINE": "binary"})
    with pytest.raises(EngineError, match="found 'cloud' but wanted `embedded` or `binary`"):
        choose_kind(layout, {"CHMV_ENGINE": "cloud"})


def test_free_ports_are_chosen_and_differ() -> None:
    http_port, tcp_port = choose_ports(0, 0)
    assert http_port != tcp_port
    assert is_free(http_port) and is_free(tcp_port)


def test_chosen_ports_are_none_that_an_outgoing_connection_may_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is killed and started again finds its port free."""
    said = tmp_path / "range"
    monkeypatch.setattr(ports, "_OUTGOING", said)
    for text, first in (
        ("32768\t60999\n", 32768),
        ("20000 30000", 20000),
        ("1024 65535", 49152),
        ("", 49152),
        (None, 49152),
    ):
        said.unlink(missing_ok=True)
        if text is not None:
            said.write_text(text)
        chosen = ports.free_ports(20)
        assert len(set(chosen)) == 20
        assert all(first - 12_000 <= port < first for port in chosen)


def test_any_port_is_better_than_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(ports, "_first_outgoing", lambda: taken.getsockname()[1] + 1)
        monkeypatch.setattr(ports.secrets, "randbelow", lambda _: 0)
        assert ports.free_ports(1) != [taken.getsockname()[1]]


def test_port_in_use_names_its_holder_and_the_option() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            EngineError, match=rf"port {port}: found it in use by process {find_listener(port)} .*--tcp-port"
        ):
            choose_ports(0, port)
        with pytest.raises(EngineError, match="asked for twice"):
            choose_ports(port, port)
    assert find_listener(port) is None


def test_nothing_runs_on_a_new_folder(tmp_path: Path) -> None:
    assert find_engine(tmp_path / "none") is None
    assert stop_engine(tmp_path / "none").result == "not_running"
    assert not (tmp_path / "none").exists()


def test_data_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    program = tmp_path / "clickhouse"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "data").write_text("")
    with pytest.raises(EngineError, match=r"data folder .*Name another folder with --data"):
        start_engine(EngineOptions(data_dir=tmp_path / "data"), environ={"PATH": str(tmp_path)})


def test_info_as_json_has_plain_values() -> None:
    info = EngineInfo(
        kind="embedded", url="http://127.0.0.1:1", http_port=1, tcp_port=2, pid=3, data_dir=Path("/d"), version="26.7"
    )
    assert info.as_json()["data_dir"] == "/d"
    assert connection_env(info) == {"CHMV_CLICKHOUSE_URL": "http://127.0.0.1:1", "CHMV_CLICKHOUSE_USER": "default"}
