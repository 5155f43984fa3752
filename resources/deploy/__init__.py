"""Carrying out a plan of `core.deploy`: what is checked before, the cutovers behind their gates, the journal, the way back."""

from resources.deploy.applier import Applied, Applier, Progress
from resources.deploy.store import DeployStore

__all__ = ["Applied", "Applier", "DeployStore", "Progress"]
