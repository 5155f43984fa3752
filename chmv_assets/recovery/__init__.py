"""Repairs, one module per kind: each takes what a sensor asked for and gives what was done. Only runs come here, sensors never.

A handler is `recover(site, ask) -> Outcome`. It may run twice for one ask, side by side or after a crash, so every step looks before it
acts. It ends with windows that are compared; what it could not repair it raises.
"""

from __future__ import annotations
