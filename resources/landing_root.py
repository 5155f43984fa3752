"""Where a declared landing is. Pure, and apart from `landing`, which brings pyarrow along."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT_VARIABLE = "CHMV_LANDING_ROOT"


def resolve_root(path: str, ddl_dir: Path, environ: Mapping[str, str]) -> str:
    """The root of a `landing.path`: URLs and absolute paths as they are, others below CHMV_LANDING_ROOT, else beside chmv.yaml.

    >>> resolve_root("landing/events", Path("/etc/ddl"), {})
    '/etc/ddl/landing/events'
    >>> resolve_root("landing/events", Path("/etc/ddl"), {"CHMV_LANDING_ROOT": "s3://bucket/demo/"})
    's3://bucket/demo/landing/events'
    """
    if "://" in path or Path(path).is_absolute():
        return path
    base = environ.get(ROOT_VARIABLE) or str(ddl_dir)
    if "://" in base:
        return f"{base.rstrip('/')}/{path}"
    return str((Path(base) / path).absolute())
