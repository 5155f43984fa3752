"""Installation with a stand-in for npm: what is accepted, what is refused, what is left behind."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import sys
import tarfile
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chmv_assets.core.errors import EngineError
from resources.engine import install, npm
from resources.engine.install import check_integrity, find_library, install_engine, unpack
from resources.engine.packages import Package
from resources.engine.report import InstallStep

PACKAGE = Package(platform="linux-x64-gnu", version="0.0.1")
LIBRARY = (b"\x7fELF\2\1".ljust(18, b"\0") + b"\x3e").ljust(64, b"\0").ljust(4096, b"\1")  # ELF, 64 bits, x86-64
NPM = """
import json, pathlib, shutil, sys
here = pathlib.Path(__file__).parent
(here / "calls").open("a").write(sys.argv[1] + "\\n")
if (here / "fail").exists():
    sys.exit((here / "fail").read_text())
if sys.argv[1] == "view":
    print((here / "integrity").read_text())
else:
    folder = next(a.partition("=")[2] for a in sys.argv if a.startswith("--pack-destination"))
    shutil.copy(here / "package.tgz", folder)
"""


def tarball(path: Path, members: dict[str, bytes], link: str = "") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    return path


def integrity(path: Path) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()


class Registry:
    """What the stand-in serves, and a cache to install into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"CHMV_CACHE_DIR": str(folder / "cache")}
        self.place = folder / "cache" / "engine" / "linux-x64-gnu-0.0.1"
        (folder / "npm.py").write_text(NPM)
        path = tarball(folder / "package.tgz", {"package/libchdb.so": LIBRARY, "package/index.js": b"x"})
        self.report(integrity(path))

    def report(self, text: str) -> None:
        (self.folder / "integrity").write_text(json.dumps(text))

    def fail(self, text: str) -> None:
        (self.folder / "fail").write_text(text)

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().split()

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.place.parent.iterdir())


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(npm, "find_npm", lambda: [sys.executable, str(tmp_path / "npm.py")])
    return Registry(tmp_path)


def test_installs_once_and_finds_it_again(registry: Registry) -> None:
    steps: list[InstallStep] = []
    assert find_library(registry.env, PACKAGE) is None
    library = install_engine(registry.env, package=PACKAGE, report=steps.append)
    assert library.read_bytes() == LIBRARY
    assert install_engine(registry.env, package=PACKAGE) == library == find_library(registry.env, PACKAGE)
    assert registry.calls() == ["view", "pack"]
    assert registry.leftovers() == ["install.lock", "linux-x64-gnu-0.0.1"]
    assert steps[0].text.startswith("installing") and steps[-1].text.startswith("installed")


def test_concurrent_installations_fetch_once(registry: Registry) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = set(pool.map(lambda _: install_engine(registry.env, package=PACKAGE), range(3)))
    assert len(found) == 1
    assert registry.calls() == ["view", "pack"]


def test_tarball_that_differs_from_the_reported_integrity_is_refused(registry: Registry) -> None:
    with (registry.folder / "package.tgz").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(EngineError, match="broken or not the real package, so it was removed"):
        install_engine(registry.env, package=PACKAGE)
    assert registry.leftovers() == ["install.lock"]


def test_tarball_is_removed_when_its_integrity_is_wrong(tmp_path: Path) -> None:
    path = tarball(tmp_path / "a.tgz", {"package/libchdb.so": LIBRARY})
    right = integrity(path)
    check_integrity(path, f"sha1-x {right}")
    with pytest.raises(EngineError, match="wanted sha512-AAAA"):
        check_integrity(path, "sha512-AAAA")
    assert not path.exists()


def test_registry_that_reports_another_hash_than_the_pinned_one_is_refused(registry: Registry) -> None:
    with pytest.raises(EngineError, match="registry serves something else"):
        install_engine(registry.env, package=Package(platform="linux-x64-gnu"))
    assert registry.calls() == ["view"]


def test_package_without_integrity_is_refused(registry: Registry) -> None:
    registry.report("sha1-abc")
    with pytest.raises(EngineError, match="found no sha512 integrity"):
        install_engine(registry.env, package=PACKAGE)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("npm error code E404\nnpm error 404 Not Found", "has no such package"),
        ("npm error code ENOTFOUND", "cannot be reached"),
        ("npm error code ECONNREFUSED", "cannot be reached"),
        ("npm error code ENOSPC", "disk is full"),
        ("npm error code EINTEGRITY", "download was broken"),
        ("npm error code E401", "refused access"),
        ("npm error something new", "npm failing .*npm error something new"),
    ],
)
def test_each_failure_of_npm_says_what_happened(registry: Registry, said: str, cause: str) -> None:
    registry.fail(said)
    with pytest.raises(EngineError, match=cause):
        install_engine(registry.env, package=PACKAGE)
    assert registry.leftovers() == ["install.lock"]


def test_full_disk_is_noticed_before_the_download(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10, 9, 1))
    with pytest.raises(EngineError, match=r"wanted 1 GB .*CHMV_CACHE_DIR"):
        install_engine(registry.env, package=PACKAGE)


def test_disk_full_while_unpacking_says_where(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(install, "_write_member", full)
    with pytest.raises(EngineError, match=r"No space left on device.*room for 1 GB"):
        install_engine(registry.env, package=PACKAGE)
    assert registry.leftovers() == ["install.lock"]


def test_cache_that_is_a_file_is_told(registry: Registry) -> None:
    (registry.folder / "cache").write_text("")
    with pytest.raises(EngineError, match="wanted a folder that can be written"):
        install_engine(registry.env, package=PACKAGE)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "package/../../evil"])
def test_entry_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    path = tarball(tmp_path / "a.tgz", {name: b"x", "package/libchdb.so": LIBRARY})
    with pytest.raises(EngineError, match="found the entry"):
        unpack(path, tmp_path / "out")
    assert not (tmp_path / "out" / "libchdb.so").exists()


def test_link_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="found the entry"):
        unpack(tarball(tmp_path / "a.tgz", {}, link="package/libchdb.so"), tmp_path / "out")


@pytest.mark.parametrize("keep", [0, 10, 100])
def test_archive_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    path = tarball(tmp_path / "a.tgz", {"package/libchdb.so": LIBRARY})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(EngineError, match="cannot be read"):
        unpack(path, tmp_path / "out")


def test_archive_without_the_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"found no libchdb\.so inside"):
        unpack(tarball(tmp_path / "a.tgz", {"package/readme": b""}), tmp_path / "out")


def test_installed_library_that_was_cut_is_refused_with_the_remedy(registry: Registry) -> None:
    library = install_engine(registry.env, package=PACKAGE)
    library.write_bytes(LIBRARY + b"more")
    with pytest.raises(EngineError, match=r"Remove .* and run `chmv engine install`"):
        find_library(registry.env, PACKAGE)
