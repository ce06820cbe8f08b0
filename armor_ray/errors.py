"""The one exception that users see: what is wrong, where, and what to do about it.

Anything a user can cause (a bad key, row, path, model, resource request) is raised as `ArmorError`; the command line turns it
into a single line and exit status 2. Every other exception is a bug and keeps its traceback.
"""

from __future__ import annotations


class ArmorError(Exception):
    """A fault of the input or the environment, not of the program.

    Args:
        message: what is wrong, one clause, no trailing stop.
        where: `file:line`, a config key, a path or an artifact; printed first.
        hint: what to do about it, one clause.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, where, hint)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}; {self.hint}" if self.hint else text

    def __reduce__(self):
        # Ray ships exceptions between processes by pickle; keyword-only arguments need this.
        return (_rebuild, (self.message, self.where, self.hint))


def _rebuild(message: str, where: str | None, hint: str | None) -> ArmorError:
    return ArmorError(message, where=where, hint=hint)
