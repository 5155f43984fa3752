"""Rebuild windows of targets under live ingestion: nothing lost, nothing doubled.

Rebuilder      what everyone calls: choose a protocol, publish, say what was done
workbench      feeds, scratches, states, the swap
closed, gated, fenced, owned, whole  the protocols
recovery       what a rebuild that died left behind
"""

from __future__ import annotations

from resources.rebuild.rebuilder import Rebuilder
from resources.rebuild.result import Published
from resources.rebuild.workbench import ScratchResult

__all__ = ["Published", "Rebuilder", "ScratchResult"]
