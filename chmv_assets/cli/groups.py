"""How a group of commands behaves: a misspelt name is answered with the nearest, every command says its exit codes.

Which commands there are belongs to `cli.main`; what a command does belongs to its own module.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import click

EXIT_CODES = (
    "Exit codes: 0 done; 1 refused or failed, the message says why and what to do; 2 the command line is wrong."
)
OF_THEIR_OWN = "plan, drift, doctor, reconcile, rebuild and engine status have codes of their own: see their --help."


class CommandGroup(click.Group):
    """A group that helps people who mistype, with its commands listed by task if it is told about tasks."""

    tasks: Mapping[str, Mapping[str, str]] = {}  # task → command → what it does, in a few words

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return with_exit_codes(super().get_command(ctx, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=3, cutoff=0.5)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(near)}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands under their tasks, without importing them; those without a task in a last section."""
        if not self.tasks:
            super().format_commands(ctx, formatter)
            return
        told = {name for names in self.tasks.values() for name in names}
        rest = {
            name: command.get_short_help_str()
            for name in self.list_commands(ctx)
            if name not in told and (command := self.get_command(ctx, name)) is not None
        }
        for task, names in {**self.tasks, **({"More": rest} if rest else {})}.items():
            with formatter.section(task):
                formatter.write_dl(list(names.items()), col_max=12)


def with_exit_codes(command: click.Command | None) -> click.Command | None:
    """The usual exit codes at the end of the help of a command that does not say its own."""
    if command is not None and not command.epilog and "xit code" not in (command.help or ""):
        command.epilog = EXIT_CODES
    return command
