"""One round of tuning: take back, settle, act, and watch what was done. The thin shell around `core.tuner`.

The run that acts watches by itself: it samples the pool until the watch is over and takes an action back as soon as the pool has fallen too
low, so within `tuner_watch` (60 s) whoever else is busy. If it dies, the sensor's next ticks find its tunings in the journal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from chmv_assets.core.names import QName
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.tuner import Action, Back, Sample, judge_watch
from chmv_assets.core.tunings import Tuning, order_back
from resources.clickhouse import Server
from resources.tuner import TuningStore
from resources.tuning_reads import read_sample

_LOOKS = 12  # in a watch: every 5 s in a minute
Told = Callable[[Tuning, str], None]  # a tuning as it stands now, and a sentence


@dataclass
class Tuner:
    """Carries out decisions on one server."""

    store: TuningStore
    limits: Limits
    tables: Sequence[QName]
    log: Callable[[str], None]
    told: Told = lambda _tuning, _sentence: None
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    samples: list[Sample] = field(default_factory=list)  # that a watch took

    @property
    def server(self) -> Server:
        return self.store.journal.server

    def end(self, backs: Sequence[Back]) -> list[Tuning]:
        """Take back and settle, in the order given."""
        ended: list[Tuning] = []
        for back in backs:
            done = self.store.finish(back)
            if done is None:
                self.log(f"{back.tuning.subject}: {back.tuning.setting} was ended by somebody else meanwhile")
                continue
            sentence = f"{back.sentence()}; {done.status}"
            self.log(sentence)
            self.told(done, sentence)
            ended.append(done)
        return ended

    def act(self, actions: Sequence[Action]) -> list[Tuning]:
        """Do the steps; gives those that were done."""
        applied: list[Tuning] = []
        for action in actions:
            tuning, why = self.store.apply(action, self.limits.tuner_watch)
            if tuning is None:
                self.log(f"{action.subject}: {why}")
                continue
            self.log(action.sentence())
            self.told(tuning, action.sentence())
            applied.append(tuning)
        return applied

    def watch(self, applied: Sequence[Tuning]) -> list[Tuning]:
        """Look at the pool until the watch is over; take back what over-corrects, settle the rest. Gives how each ended."""
        open_ones = list(order_back(applied))
        ended: list[Tuning] = []
        while open_ones:
            self.sleep(self.limits.tuner_watch / _LOOKS)
            now = self.clock()
            self.samples.append(read_sample(self.server, self.tables, now))
            for one in tuple(open_ones):
                back = judge_watch(self.samples, one, self.limits)
                # The last look comes before the end of the watch: what is taken back then is back within it.
                if back is None and (now + self.limits.tuner_watch / _LOOKS) * 1000 >= one.watch_until_ms:
                    back = Back(tuning=one, kind="watched", reason="its watch has ended well", settle=True)
                if back is not None:
                    ended += self.end([back])
                    open_ones.remove(one)
        return ended

    def roll_back(self, tunings: Iterable[Tuning], reason: str) -> list[Tuning]:
        """Take back those that are active, the newest first."""
        return self.end([Back(tuning=one, kind="by hand", reason=reason) for one in order_back(tunings)])
