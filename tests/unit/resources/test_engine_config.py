"""The generated configuration: loopback, few logs, no secrets."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from resources.engine.config import LOG_TABLES, embedded_arguments, render_config, render_users
from resources.engine.model import DataLayout, LocalKind
from resources.engine.process import server_command, server_environment

LAYOUT = DataLayout(Path("/data & <more>/it's"))


@pytest.mark.parametrize("kind", ["embedded", "binary"])
def test_config_is_sound_xml_on_loopback_with_three_slow_logs(kind: LocalKind) -> None:
    root = ElementTree.fromstring(render_config(LAYOUT, kind, 8123, 9000))
    assert [host.text for host in root.findall("listen_host")] == ["127.0.0.1"]
    assert (root.findtext("http_port"), root.findtext("tcp_port")) == ("8123", "9000")
    assert root.findtext("path") == "/data & <more>/it's/clickhouse/"
    assert root.findtext("users_config") == str(LAYOUT.users)
    assert tuple(child.tag for child in root if child.tag.endswith("_log")) == LOG_TABLES
    assert all(int(root.findtext(f"{log}/flush_interval_milliseconds", "0")) >= 5000 for log in LOG_TABLES)
    assert (root.find("background_pool_size") is not None) == (kind == "embedded")


def test_users_are_let_in_from_this_machine_only_and_the_password_is_elsewhere() -> None:
    for with_password in (True, False):
        user = ElementTree.fromstring(render_users(with_password=with_password)).find("users/default")
        assert user is not None
        assert {ip.text for ip in user.findall("networks/ip")} == {"127.0.0.1", "::1"}
        hashed = user.find("password_sha256_hex")
        assert (hashed is not None and hashed.get("from_env") == "CHMV_ENGINE_PASSWORD_SHA256") == with_password


def test_server_sees_the_hash_of_the_password_only() -> None:
    seen = server_environment({"A": "b", "CHMV_CLICKHOUSE_PASSWORD": "abc", "CHMV_CLICKHOUSE_URL": "http://x"})
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert seen == {"A": "b", "CHMV_ENGINE_PASSWORD_SHA256": digest}
    assert server_environment({"A": "b"}) == {"A": "b"}


def test_commands_of_both_kinds() -> None:
    layout = DataLayout(Path("/d"))
    embedded = server_command("embedded", Path("/lib.so"), layout, 1, 2)
    assert embedded == ["embedded", "/lib.so", *embedded_arguments(layout, 1, 2)]
    assert "--listen_host=127.0.0.1" in embedded
    binary = server_command("binary", Path("/bin/clickhouse"), layout, 1, 2)
    assert binary == ["exec", "/bin/clickhouse", "server", "--config-file=/d/config/config.xml"]
