"""Which package fits which machine, and which library files are refused."""

from __future__ import annotations

import platform
import struct
import sys
from pathlib import Path

import pytest

from chmv_assets.core.errors import EngineError
from resources.engine.packages import PLATFORMS, Package, check_library, platform_name, this_package

X64 = Package(platform="linux-x64-gnu")


def elf(machine: int = 62, total: int = 4096, bits: int = 2) -> bytes:
    """The header of a shared library whose section headers end at `total`."""
    head = bytearray(64)
    head[:6] = b"\x7fELF" + bytes((bits, 1))
    struct.pack_into("<H", head, 18, machine)
    struct.pack_into("<Q", head, 40, total - 2 * 64)
    struct.pack_into("<HH", head, 58, 64, 2)
    return bytes(head)


def written(folder: Path, content: bytes) -> Path:
    path = folder / "libchdb.so"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("system", "machine", "libc", "expected"),
    [
        ("linux", "x86_64", "glibc", "linux-x64-gnu"),
        ("linux", "aarch64", "glibc", "linux-arm64-gnu"),
        ("darwin", "arm64", "", "darwin-arm64"),
        ("darwin", "x86_64", "", "darwin-x64"),
        ("linux", "x86_64", "musl", None),
        ("linux", "riscv64", "glibc", None),
        ("win32", "AMD64", "", None),
    ],
)
def test_platform_of_a_machine(system: str, machine: str, libc: str, expected: str | None) -> None:
    assert platform_name(system, machine, libc) == expected


def test_unsupported_machine_is_told_what_is_supported_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    with pytest.raises(EngineError) as error:
        this_package()
    assert all(name in str(error.value) for name in (*PLATFORMS, "CHMV_CLICKHOUSE_URL"))


def test_whole_library_for_this_machine_is_accepted(tmp_path: Path) -> None:
    check_library(written(tmp_path, elf().ljust(4096, b"\0")), X64)
    check_library(written(tmp_path, elf().ljust(4096, b"\0")), X64, expected_bytes=4096)


@pytest.mark.parametrize(
    ("content", "expected_bytes", "message"),
    [
        (b"", None, "found no ELF or Mach-O header"),
        (b"<html>not found</html>", None, "found no ELF or Mach-O header"),
        (elf(183).ljust(4096, b"\0"), None, "found a library for linux-arm64 but wanted linux-x64-gnu"),
        (elf(bits=1).ljust(4096, b"\0"), None, "found a library for linux-machine62"),
        (struct.pack("<II", 0xFEEDFACF, 0x0100000C).ljust(64, b"\0"), None, "found a library for darwin-arm64"),
        (elf().ljust(4095, b"\0"), None, "found 4,095 bytes but wanted 4,096"),
        (elf().ljust(5000, b"\0"), 6000, "found 5,000 bytes but wanted 6,000"),
        (elf().ljust(5000, b"\0"), 4500, "found 5,000 bytes but wanted 4,500"),
        (elf()[:30], None, "found 30 bytes"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, expected_bytes: int | None, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        check_library(written(tmp_path, content), X64, expected_bytes)
