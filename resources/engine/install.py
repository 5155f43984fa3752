"""Fetching the embedded server's library with npm into the cache.

Invariant: the cache holds a version's folder whole or not at all. The tarball's sha512 must equal both the pinned hash
and the one npm reports; it is unpacked beside the final place and renamed into it. Only npm knows the registry.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from chmv_assets.core.errors import EngineError
from resources.engine import npm
from resources.engine.lock import hold_guard, write_atomically
from resources.engine.model import URL_VARIABLE
from resources.engine.packages import LIBRARY_NAME, Package, check_library, this_package
from resources.engine.report import InstallStep, Report, ignore
from resources.toolchain import CACHE_VARIABLE, cache_dir

_CHUNK_BYTES = 4 * 1024 * 1024
_NEEDED_BYTES = 1_000_000_000  # tarball 0.18 GB, library 0.57 GB, npm's own cache
_INSTALL_TIMEOUT_SECONDS = 1800.0
_WANTED_MEMBERS = {LIBRARY_NAME, "package.json"}


def find_library(environ: Mapping[str, str] | None = None, package: Package | None = None) -> Path | None:
    """The installed and checked library, or None when it has to be installed."""
    wanted = package or this_package()
    folder = _folder(environ, wanted)
    library = folder / LIBRARY_NAME
    if not library.exists():
        return None
    check_library(library, wanted, _recorded_bytes(folder))
    return library


def install_engine(
    environ: Mapping[str, str] | None = None, *, report: Report = ignore, package: Package | None = None
) -> Path:
    """Install the library unless it is there, and return its path. Safe to call from many processes at once."""
    wanted = package or this_package()
    if found := find_library(environ, wanted):
        return found
    folder = _folder(environ, wanted)
    with (
        _disk_errors(folder),
        hold_guard(folder.parent / "install.lock", _INSTALL_TIMEOUT_SECONDS, purpose="installing"),
    ):
        if found := find_library(environ, wanted):
            return found
        _check_room(folder.parent)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent) as temporary:
            _fetch(wanted, Path(temporary), folder, report)
    library = folder / LIBRARY_NAME
    check_library(library, wanted, _recorded_bytes(folder))
    report(InstallStep(text=f"installed ClickHouse {wanted.version} in {folder}", done_bytes=1, total_bytes=1))
    return library


def check_integrity(tarball: Path, integrity: str, report: Report = ignore) -> None:
    """Compare a file with an npm integrity text (`sha512-<base64>`); remove it when they differ."""
    digest, size, done = hashlib.sha512(), tarball.stat().st_size, 0
    with tarball.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            report(InstallStep(text="checking", done_bytes=done, total_bytes=size))
    found = "sha512-" + base64.b64encode(digest.digest()).decode()
    if found not in integrity.split():
        tarball.unlink()
        raise EngineError(
            f"package {tarball.name}: found {found} but wanted {integrity}. The download is broken or not the real "
            f"package, so it was removed. Run `chmv engine install` again; if it fails again, check npm's registry."
        )


def unpack(tarball: Path, folder: Path, report: Report = ignore) -> None:
    """Take the wanted files out of the tarball's `package/` folder; links and paths that lead elsewhere are refused."""
    folder.mkdir(parents=True)
    try:
        with tarfile.open(tarball, "r:gz") as archive:
            for member in archive:
                name = _member_name(member, tarball)
                if name in _WANTED_MEMBERS:
                    _write_member(archive, member, folder / name, report)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise EngineError(
            f"package {tarball.name}: found an archive that cannot be read ({error}) but wanted a gzipped tar file. "
            f"Run `chmv engine install` again."
        ) from error
    if not (folder / LIBRARY_NAME).exists():
        raise EngineError(
            f"package {tarball.name}: found no {LIBRARY_NAME} inside but wanted it. This is not the engine's package. "
            f"Check npm's registry setting and run `chmv engine install` again."
        )


def _fetch(package: Package, temporary: Path, folder: Path, report: Report) -> None:
    report(InstallStep(text=f"installing {package.spec} with npm (about 180 MB, once)"))
    reported = npm.read_integrity(package, temporary)
    pinned = package.pinned_integrity
    if pinned is not None and pinned not in reported.split():
        raise EngineError(
            f"package {package.spec}: found the integrity {reported} in npm's registry but wanted {pinned}. "
            f"The registry serves something else than the published package. Check npm's registry setting."
        )
    tarball = npm.pack(package, temporary, report)
    check_integrity(tarball, pinned or reported, report)
    unpacked = temporary / "unpacked"
    unpack(tarball, unpacked, report)
    library = unpacked / LIBRARY_NAME
    check_library(library, package)
    facts = {"package": package.name, "version": package.version, "library_bytes": library.stat().st_size}
    write_atomically(
        unpacked / "installed.json", json.dumps({**facts, "integrity": pinned or reported}, indent=1) + "\n"
    )
    if folder.exists():  # an incomplete leftover: a whole one was found before we came here
        shutil.rmtree(folder)
    unpacked.rename(folder)


def _member_name(member: tarfile.TarInfo, tarball: Path) -> str:
    """The name inside `package/`; only plain files and folders below it are accepted."""
    parts = Path(member.name).parts
    if Path(member.name).is_absolute() or ".." in parts or not (member.isfile() or member.isdir()):
        raise EngineError(
            f"package {tarball.name}: found the entry {member.name!r} but wanted plain files inside `package/` only. "
            f"Such an entry could write elsewhere, so nothing was unpacked. Check npm's registry setting."
        )
    return "/".join(parts[1:])


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path, report: Report) -> None:
    source = archive.extractfile(member)
    if source is None:
        return
    done = 0
    with source, path.open("wb") as target:
        while chunk := source.read(_CHUNK_BYTES):
            target.write(chunk)
            done += len(chunk)
            report(InstallStep(text="unpacking", done_bytes=done, total_bytes=member.size))


def _folder(environ: Mapping[str, str] | None, package: Package) -> Path:
    return cache_dir(environ) / "engine" / f"{package.platform}-{package.version}"


def _recorded_bytes(folder: Path) -> int | None:
    try:
        value = json.loads((folder / "installed.json").read_text(encoding="utf-8"))["library_bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, int) else None


def _check_room(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        raise EngineError(
            f"cache {folder}: found {free / 1e9:.2f} GB free but wanted {_NEEDED_BYTES / 1e9:.0f} GB for the engine. "
            f"Make room, or name a folder on another disk in {CACHE_VARIABLE}."
        )


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        wanted = "room for 1 GB" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "a folder that can be written"
        raise EngineError(
            f"cache {folder.parent}: found `{error.strerror or error}` but wanted {wanted}. The engine cannot be "
            f"installed there. Name another folder in {CACHE_VARIABLE}, or set {URL_VARIABLE} to a ClickHouse server."
        ) from error
