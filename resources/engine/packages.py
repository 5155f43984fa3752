"""Which npm package holds the server's library for which machine, and how its file must look.

Invariant: a file is only ever loaded after its integrity was checked at installation and its header, machine and size
were checked now. Fetching does not belong here (see `install`).
"""

from __future__ import annotations

import platform
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from chmv_assets.core.errors import EngineError
from resources.engine.model import URL_VARIABLE

VERSION = "26.7.3-stable.1"
LIBRARY_NAME = "libchdb.so"
PLATFORMS = ("linux-x64-gnu", "linux-arm64-gnu", "darwin-arm64", "darwin-x64")

# What npm reported on 2026-11-16. A platform without an entry is checked against what npm reports at installation only.
PINNED_INTEGRITY = {
    "linux-x64-gnu": "sha512-XP97mMqnc5tZpKQywR8N7cLTsHNiTmHr30pC5mzo3jWmukjKn2IBa60c2B/gWUNcuFjOMjWoorQICCqBVj5wpw==",
}

_ELF_MACHINES = {62: "x64", 183: "arm64"}
_MACHO_MACHINES = {0x01000007: "x64", 0x0100000C: "arm64"}
_MACHO_64 = 0xFEEDFACF


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One npm package at one version."""

    platform: str
    version: str = VERSION

    @property
    def name(self) -> str:
        return f"@chdb/lib-{self.platform}"

    @property
    def spec(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def pinned_integrity(self) -> str | None:
        return PINNED_INTEGRITY.get(self.platform) if self.version == VERSION else None


def platform_name(system: str, machine: str, libc: str) -> str | None:
    """The package's platform for this machine, or None where there is none.

    >>> platform_name("linux", "x86_64", "glibc"), platform_name("linux", "x86_64", "musl")
    ('linux-x64-gnu', None)
    """
    processor = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(machine.lower())
    if processor is None or system not in ("linux", "darwin") or (system == "linux" and libc != "glibc"):
        return None
    name = f"linux-{processor}-gnu" if system == "linux" else f"darwin-{processor}"
    return name if name in PLATFORMS else None


def this_package() -> Package:
    """The package for the machine we run on."""
    libc = platform.libc_ver()[0] or "another C library"
    found = platform_name(sys.platform, platform.machine(), libc)
    if found is None:
        shown = f"{sys.platform} {platform.machine()}" + (f" with {libc}" if sys.platform == "linux" else "")
        raise EngineError(
            f"engine: found {shown} but wanted one of {', '.join(PLATFORMS)}. "
            f"The embedded ClickHouse is built for these only. "
            f"Set {URL_VARIABLE} to a ClickHouse server, or put a `clickhouse` binary on PATH."
        )
    return Package(platform=found)


def check_library(path: Path, package: Package, expected_bytes: int | None = None) -> None:
    """Refuse a file that is not the whole library for this machine, before it is loaded."""
    size = path.stat().st_size
    wanted = package.platform.split("-")[1]
    with path.open("rb") as file:
        head = file.read(64)
    found = _machine_of(head)
    again = f"Remove {path.parent} and run `chmv engine install`."
    if found is None:
        raise EngineError(f"library {path}: found no ELF or Mach-O header but wanted a shared library. {again}")
    if found != (package.platform.split("-")[0], wanted):
        raise EngineError(
            f"library {path}: found a library for {'-'.join(found)} but wanted {package.platform}. "
            f"It cannot be loaded on this machine. {again}"
        )
    least = max(expected_bytes or 0, _elf_size(head))
    if size < least or (expected_bytes is not None and size != expected_bytes):
        raise EngineError(
            f"library {path}: found {size:,} bytes but wanted {least:,}. "
            f"The file is not the one that was installed. {again}"
        )


def _machine_of(head: bytes) -> tuple[str, str] | None:
    if len(head) >= 20 and head[:4] == b"\x7fELF":
        machine = struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)[0]
        known = _ELF_MACHINES.get(machine) if head[4] == 2 else None
        return ("linux", known or f"machine{machine}")
    if len(head) >= 8 and struct.unpack_from("<I", head)[0] == _MACHO_64:
        machine = struct.unpack_from("<I", head, 4)[0]
        return ("darwin", _MACHO_MACHINES.get(machine, f"machine{machine}"))
    return None


def _elf_size(head: bytes) -> int:
    """Where an ELF file's section headers end, which is its last byte as linkers write it; 0 for other formats."""
    if head[:4] != b"\x7fELF":
        return 0
    if len(head) < 64:
        return 64
    offset = struct.unpack_from("<Q", head, 40)[0]
    entry_bytes, entries = struct.unpack_from("<HH", head, 58)
    return int(offset + entry_bytes * entries)
