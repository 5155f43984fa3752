"""What is collected here: the ten breaks take five minutes of one core, so they run on demand (CONTRIBUTING.md)."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("CHMV_THOROUGH") else ["test_recovery.py"]
