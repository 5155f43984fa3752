"""One name and one allocator of versions per process, for everybody who writes the journal."""

from __future__ import annotations

import os
from typing import Any, cast

from chmv_assets.core.versions import split_version
from chmv_assets.process_identity import VERSIONS, this_owner
from resources.journal import Journal
from spark_jobs import commit


def test_journal_and_spark_jobs_share_the_allocator() -> None:
    assert Journal(cast(Any, None)).versions is VERSIONS is commit.VERSIONS
    assert split_version(VERSIONS.next()).process == os.getpid() & 0xFF


def test_the_owner_names_the_process() -> None:
    assert this_owner().endswith(f":{os.getpid()}")
    assert Journal(cast(Any, None)).owner == this_owner()
