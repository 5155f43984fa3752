"""What is collected here: the ways to break a pipeline take minutes of two cores, so they run on demand (`make thorough`)."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("CHMV_THOROUGH") else ["test_recovery.py"]
