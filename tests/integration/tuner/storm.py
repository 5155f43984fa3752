"""An insert storm on the real server, and what can make its merges fall behind."""

from __future__ import annotations

import http.client
import threading
import time
from types import TracebackType

from resources.engine import EngineInfo

STORMY = "({columns}) ENGINE = MergeTree ORDER BY x SETTINGS parts_to_delay_insert = {delay}, parts_to_throw_insert = {throw}"
LIGHT = ("x UInt64, p String", "SELECT number, toString(number) FROM numbers(5)")
# Compressing is what makes these merges slow: four writers of some 10 KB fill the merge pool of two cores.
HEAVY = (
    "x UInt64, p String CODEC(ZSTD(19))",
    "SELECT number, toString(cityHash64(number, rand())) || repeat(hex(number * 7919), 20) FROM numbers(300)",
)


class Storm:
    """Writers that insert without a pause, each over a connection of its own; refused inserts are tried again."""

    def __init__(self, engine: EngineInfo, table: str, select: str, writers: int, pause: float = 0.0) -> None:
        self.port, self.sql, self.pause = engine.http_port, f"INSERT INTO {table} {select}", pause
        self.done, self.inserted, self.refused = threading.Event(), 0, 0
        self.threads = [threading.Thread(target=self._write, daemon=True) for _ in range(writers)]

    def _write(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while not self.done.wait(self.pause):
            connection.request("POST", "/?async_insert=0", body=self.sql)
            response = connection.getresponse()
            response.read()
            if response.status == 200:
                self.inserted += 1
            else:
                self.refused += 1
                time.sleep(0.1)
        connection.close()

    def __enter__(self) -> Storm:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:  # fmt: skip
        self.stop()

    def stop(self) -> None:
        self.done.set()
        for thread in self.threads:
            thread.join()
