"""`python -m soak`: run it, print the report, exit 0 only if all is well. See docs/soak.md."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click

from soak.play import Options, play


@click.command()
@click.option("--minutes", type=float, default=30.0, show_default=True, help="How long things are done to it.")
@click.option(
    "--seed", type=int, help="The same seed does the same things in the same order; otherwise one is drawn and printed."
)
@click.option(
    "--faults",
    type=click.Choice(("all", "cheap")),
    default="all",
    show_default=True,
    help="cheap: no kills of the server, no deployments, no Spark.",
)
@click.option(
    "--settle-seconds",
    type=float,
    default=420.0,
    show_default=True,
    help="How long sensors have to repair what is open in the end.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep everything here; otherwise a temporary folder that is removed.",
)
@click.option(
    "--timeline",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("soak-timeline.jsonl"),
    show_default=True,
    help="Everything that happened, as JSON lines.",
)
def main(
    minutes: float, seed: int | None, faults: str, settle_seconds: float, folder: Path | None, timeline: Path
) -> None:
    """A whole pipeline under writers, readers, faults, rebuilds and changes of its DDL; ends with what was lost, doubled and left.

    Exit codes: 0 nothing was; 1 something was, the report says what.

    \b
    Example:
      python -m soak --minutes 5 --seed 7
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nobody of the many processes stays behind
    used = folder or Path(tempfile.mkdtemp(prefix="chmv-soak-"))
    used.mkdir(parents=True, exist_ok=True)
    options = Options(seconds=minutes * 60, seed=seed, everything=faults == "all", settle_seconds=settle_seconds)
    try:
        result = play(used, timeline, options)
    finally:
        if folder is None:
            shutil.rmtree(used, ignore_errors=True)
    click.echo(result.text)
    sys.exit(1 if result.why else 0)


if __name__ == "__main__":
    main()
