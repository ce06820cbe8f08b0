"""Type-checked access to decoded records, and unique ids."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable
from typing import Any

from armor_ray.errors import ArmorError


class Fields:
    """One decoded record. Every failure names the record's place and the field; a null counts as absent.

    Args:
        record: what a decoder returned; anything but an object is refused.
        where: file:line or key path of the record.
    """

    def __init__(self, record: object, where: str) -> None:
        self.where = where
        self._record: dict[str, Any] = self._expect(record, dict, "the record", "an object")

    def fault(self, message: str, hint: str) -> ArmorError:
        return ArmorError(message, where=self.where, hint=hint)

    def has(self, name: str) -> bool:
        return self._record.get(name) is not None

    def refuse_unknown(self, known: frozenset[str]) -> None:
        """Refuses fields that nobody reads: they are misspelt more often than superfluous."""
        for name in self._record:
            if name not in known:
                close = difflib.get_close_matches(name, sorted(known), n=1)
                hint = f"did you mean '{close[0]}'?" if close else f"known fields: {', '.join(sorted(known))}"
                raise self.fault(f"unknown field '{name}'", hint)

    def text(self, name: str) -> str:
        """A required string, not blank, exactly as it stands."""
        value = self._expect(self._required(name), str, f"field '{name}'", "a string")
        if not value.strip():
            raise self.fault(f"field '{name}' is empty", "fill it or remove the record")
        return self._encodable(value, name)

    def optional_text(self, name: str) -> str:
        """A string, empty when absent."""
        value = self._expect(self._record[name], str, f"field '{name}'", "a string") if self.has(name) else ""
        return self._encodable(value, name)

    def texts(self, name: str, blanks: bool = False) -> list[str]:
        """A list of strings, empty when absent; blank ones only where `blanks` allows them."""
        values = self._expect(self._record[name], list, f"field '{name}'", "a list") if self.has(name) else []
        for value in values:
            if not self._expect(value, str, f"an entry of '{name}'", "a string").strip() and not blanks:
                raise self.fault(f"an entry of '{name}' is empty", "fill or remove it")
        return [self._encodable(value, name) for value in values]

    def integer(self, name: str) -> int:
        value = self._required(name)
        if isinstance(value, bool):  # a Python int, but not a JSON number
            raise self.fault(f"field '{name}' is bool, not an integer", "correct its type")
        return self._expect(value, int, f"field '{name}'", "an integer")

    def identifier(self, name: str) -> str:
        """A required id: a string that is not blank, or a whole number."""
        value = self._required(name)
        return str(self.integer(name)) if isinstance(value, int) else self.text(name).strip()

    def first(self, *names: str) -> str:
        """The first of these fields that the record has; the last one if it has none. Published files spell one field in several ways."""
        return next((name for name in names if self.has(name)), names[-1])

    def value(self, name: str) -> Any:
        """A field of a type that varies in the published files, None when absent; the caller checks it."""
        return self._record.get(name)

    def names(self) -> list[str]:
        """All field names, as in objects whose keys are ids."""
        return [self._encodable(name, name) for name in self._record]

    def flag(self, name: str, default: bool) -> bool:
        return self._expect(self._record[name], bool, f"field '{name}'", "true or false") if self.has(name) else default

    def records(self, name: str) -> list[Fields]:
        """A required list of objects, each knowing its own place; also as Hugging Face stores it, one object of equally long lists."""
        values = self._required(name)
        if isinstance(values, dict):
            values = self._transposed(values, name)
        self._expect(values, list, f"field '{name}'", "a list")
        return [Fields(value, f"{self.where} {name}[{place}]") for place, value in enumerate(values)]

    def integers(self, name: str) -> list[int]:
        """A required list of integers."""
        values = self._expect(self._required(name), list, f"field '{name}'", "a list")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int):
                raise self.fault(f"an entry of '{name}' is {type(value).__name__}, not an integer", "correct its type")
        return values

    def pairs(self, name: str, first: str, second: str) -> list[Fields]:
        """A required list of two-element lists as records with these two names; or `records`, where they are named already."""
        values = self._required(name)
        if not isinstance(values, list) or not all(isinstance(value, list) for value in values):
            return self.records(name)
        if any(len(value) != 2 for value in values):
            raise self.fault(f"an entry of '{name}' does not have two elements", f"write [{first}, {second}]")
        return [Fields({first: one, second: two}, f"{self.where} {name}[{place}]") for place, (one, two) in enumerate(values)]

    def record(self, name: str) -> Fields:
        """A required object."""
        return Fields(self._required(name), f"{self.where} {name}")

    def _transposed(self, columns: dict[str, Any], name: str) -> list[dict[str, Any]]:
        for column in columns.values():
            self._expect(column, list, f"field '{name}'", "a list")
        if len(set(map(len, columns.values()))) > 1:
            raise self.fault(f"the lists of field '{name}' differ in length", "give one entry a record in each")
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def _required(self, name: str) -> Any:
        if not self.has(name):
            raise self.fault(f"missing field '{name}'", "add it")
        return self._record[name]

    def _expect(self, value: Any, kind: type, what: str, expected: str) -> Any:
        if not isinstance(value, kind):
            raise self.fault(f"{what} is {type(value).__name__}, not {expected}", "correct its type")
        return value

    def _encodable(self, value: str, name: str) -> str:
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise self.fault(f"field '{name}' holds half of a surrogate pair, which is no character", "remove that escape") from None
        return value


class UniqueIds:
    """Remembers where an id was first used and refuses a second use."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def add(self, name: str, where: str) -> None:
        if name in self._first:
            raise _taken(name, where, self._first[name])
        self._first[name] = where


class UniqueDigests:
    """The same for ids too many to remember each one's place: it keeps 16 bytes an id, and looks for the first place when it must name it.

    Args:
        find: the place of an id's first use.
    """

    def __init__(self, find: Callable[[str], str]) -> None:
        self._find = find
        self._digests: set[bytes] = set()

    def add(self, name: str, where: str) -> None:
        digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
        if digest in self._digests:
            raise _taken(name, where, self._find(name))
        self._digests.add(digest)


def _taken(name: str, where: str, first: str) -> ArmorError:
    return ArmorError(f"duplicate id '{name}'", where=where, hint=f"it is taken by {first}: ids must be unique")
