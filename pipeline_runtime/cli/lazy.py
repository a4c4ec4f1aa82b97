"""A command group that imports a command when it is called, and nothing to list its commands.

A command's module imports what its options and checks need: pydantic, rich, sometimes more. The
help of the program, and every other command, is spared that.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


class LazyGroup(TyperGroup):
    """The commands of the program; `table` holds the place of each one's function."""

    table: ClassVar[dict[str, tuple[str, str]]] = {}
    _has_joined: ClassVar[bool] = False

    @classmethod
    def add(cls, name: str, place: str, summary: str = "") -> None:
        """Add a command.

        Args:
            place: its function, or its typer.Typer, as `module:name`.
            summary: one short line for the program's help; empty hides the command.
        """
        cls.table[name] = (place, summary)

    @classmethod
    def _join_others(cls) -> None:
        """Add the commands of other packages, once."""
        if cls._has_joined:
            return
        import importlib.metadata

        LazyGroup._has_joined = True
        for point in importlib.metadata.entry_points(group="lastmile.commands"):
            point.load()(cls)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        self._join_others()
        return [*self.table]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command that has no more than its name and summary."""
        if cmd_name not in self.table:
            self._join_others()
        if cmd_name not in self.table:
            return None
        _, summary = self.table[cmd_name]
        return TyperCommand(cmd_name, help=summary, hidden=not summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is called. Raises UsageError for an unknown one."""
        if args[0] not in self.table:
            self._join_others()
        self.commands = {name: self.get_command(ctx, name) for name in self.table}  # to suggest
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and _load(command.name or "", self.table[command.name or ""][0]), rest


def _load(name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
        found.command(name)(function)
    command = typer.main.get_command(found)
    command.name = name
    return command
