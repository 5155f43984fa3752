"""What every repair works with: the pipeline, the server, the journal, a log and a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from chmv_assets.core.errors import RecoveryFailed
from chmv_assets.core.model import Object
from chmv_assets.core.recovery import Ask
from chmv_assets.pipeline import Pipeline
from resources.clickhouse import Server
from resources.executor import Executor
from resources.journal import Journal

Log = Callable[[str], None]


@dataclass
class RecoverySite:
    """One server with one pipeline, for the length of a repair."""

    pipeline: Pipeline
    server: Server
    journal: Journal
    log: Log
    run_id: str = ""
    clock: Callable[[], float] = time.time
    trace: Log | None = None  # every statement; where nobody says, with the rest
    steps: list[str] = field(default_factory=list)  # what was done so far, in sentences

    @cached_property
    def executor(self) -> Executor:
        return Executor(self.server, log=self.log, trace=self.trace, cluster=self.journal.cluster)

    def did(self, sentence: str) -> None:
        """Note a step: it goes to the log now and to the run's page in the end."""
        self.steps.append(sentence)
        self.log(sentence)

    def declared(self, ask: Ask) -> Object:
        """What an ask is about, as the folder declares it now."""
        made = self.pipeline.catalog.objects.get(ask.subject)
        if made is None:
            raise RecoveryFailed(
                f"repair {ask.subject}: found no such declared object but wanted the one that the sensor saw. The DDL folder has changed since. "
                "Nothing was done; the next tick looks again."
            )
        return made

    def now_ms(self) -> int:
        return int(self.clock() * 1000)
