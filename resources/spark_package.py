"""The code that Spark's executors need, as one zip file.

Holds `chmv_assets.core`, what else `spark_jobs` imports of `chmv_assets`, and `spark_jobs`, as they are installed here; nothing
is imported to find them. Invariant: the same sources give the same bytes and so the same file name, whoever builds it and when.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from chmv_assets.core.errors import EngineError

SHIPPED = ("chmv_assets/__init__.py", "chmv_assets/core", "chmv_assets/process_identity.py", "spark_jobs")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest date that a zip can hold
_MODE = 0o100644 << 16


def write_package(folder: Path) -> Path:
    """Put the zip into the folder, unless it is there already, and return its path."""
    content = build_package()
    target = folder / f"chmv-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = target.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(content)
        temporary.replace(target)
    return target


def build_package() -> bytes:
    """The zip's bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_sources()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = _MODE
            entry.create_system = 3  # the same on every system
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _sources() -> Iterator[tuple[str, Path]]:
    for shipped in SHIPPED:
        package, _, inner = shipped.partition("/")
        root = _package_folder(package)
        if inner.endswith(".py"):
            yield shipped, root / inner
            continue
        for path in (root / inner).rglob("*.py"):
            yield f"{package}/{path.relative_to(root).as_posix()}", path


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise EngineError(
            f"package {package}: found no folder but wanted one to send to Spark's executors. "
            "They run its code. Install chmv with `pip install -e .`."
        )
    return Path(next(iter(spec.submodule_search_locations)))
