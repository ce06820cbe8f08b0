"""From a reply's text to readings: the forms that judges ask for, and their JSON schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from armor_ray.judges.parsing import Reading, UnreadableReply, read_flag, read_list, read_number, read_object, read_score
from armor_ray.judges.request import Reply, Schema

Read = Callable[[Any], tuple[float, tuple[str, ...]]]


def number_reading(reply: Reply, name: str) -> Reading:
    """A reply that is one number.

    Raises:
        UnreadableReply: it states none.
    """
    score, notes = read_number(reply.text, cut=reply.finish_reason == "length")
    return Reading({name: score}, notes)


def object_or_number_reading(reply: Reply, name: str) -> Reading:
    """A reply that is a JSON object with one score under `name`; where no schema holds a model to that, often the number alone.

    Raises:
        UnreadableReply: it states no number.
    """
    try:
        return object_reading(reply, {name: read_score})
    except UnreadableReply:
        return number_reading(reply, name)


def object_reading(reply: Reply, readers: Mapping[str, Read]) -> Reading:
    """A reply that is one JSON object with the keys of `readers`.

    Raises:
        UnreadableReply: it is not, or a value is unreadable.
    """
    value, notes = read_object(reply.text, list(readers))
    return _entry_reading(value, readers, notes)


def entry_readings(reply: Reply, key: str, number: str, count: int, readers: Mapping[str, Read]) -> list[Reading | None]:
    """A reply that is a JSON list of objects under `key`, each naming by `number` (1 to `count`) the item it is about.

    The first entry about an item counts; an item without a readable one has None.

    Raises:
        UnreadableReply: there is no such list.
    """
    entries, notes = read_list(reply.text, key)
    readings: list[Reading | None] = [None] * count
    for entry in entries:
        position = _position(entry.get(number), count)
        if position is None or readings[position] is not None:
            continue
        try:
            readings[position] = _entry_reading(entry, readers, notes)
        except UnreadableReply:
            continue
    return readings


def flag(value: Any) -> tuple[float, tuple[str, ...]]:
    """A yes or no as 1 or 0.

    Raises:
        UnreadableReply: it is neither.
    """
    return float(read_flag(value)), ()


def object_schema(name: str, properties: Mapping[str, str]) -> Schema:
    """Schema of one object: key → JSON type, all required."""
    return Schema(name, _object(properties))


def list_schema(name: str, key: str, properties: Mapping[str, str], fewest: int, most: int) -> Schema:
    """Schema of a list of such objects under `key`. Without a bound to their number small models go on until the reply is cut."""
    items = {"type": "array", "items": _object(properties), "minItems": fewest, "maxItems": most}
    return Schema(name, {"type": "object", "properties": {key: items}, "required": [key], "additionalProperties": False})


def _object(properties: Mapping[str, str]) -> dict[str, Any]:
    types = {key: {"type": kind} for key, kind in properties.items()}
    return {"type": "object", "properties": types, "required": list(types), "additionalProperties": False}


def _entry_reading(entry: Mapping[str, Any], readers: Mapping[str, Read], notes: Sequence[str]) -> Reading:
    scores: dict[str, float] = {}
    found = set(notes)
    for name, read in readers.items():
        if name not in entry:
            raise UnreadableReply(f"no {name}")
        scores[name], more = read(entry[name])
        found.update(more)
    return Reading(scores, tuple(sorted(found)))


def _position(value: Any, count: int) -> int | None:
    """Zero-based position of a one-based number, given as a number or a string of digits."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= count:
        return None
    return value - 1
