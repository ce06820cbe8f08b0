"""Arrow schemas of the tables that travel between stages, and the check that a table obeys one."""

from __future__ import annotations

import pyarrow as pa

from armor_ray.errors import ArmorError

PASSAGES = pa.schema(
    [
        ("passage_id", pa.int64()),  # dense, 0..n-1: the FAISS row
        ("doc_id", pa.string()),
        ("title", pa.string()),
        ("text", pa.string()),  # the document's text[start:end], unmodified
        ("source", pa.string()),
        ("doc_type", pa.string()),
        ("start", pa.int64()),  # character offsets into the document
        ("end", pa.int64()),
    ]
)

EXAMPLES = pa.schema(
    [
        ("example_id", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("positive_ids", pa.list_(pa.int64())),  # passage_id of every gold passage, ascending
        ("doc_id", pa.string()),
        ("domain", pa.string()),
    ]
)

CANDIDATES = pa.schema(
    [
        ("example_id", pa.string()),
        ("passage_ids", pa.list_(pa.int64())),
        ("scores", pa.list_(pa.float32())),  # base cosine
        ("is_positive", pa.list_(pa.bool_())),
    ]
)

UTILITIES = pa.schema(
    [
        ("example_id", pa.string()),
        ("passage_id", pa.int64()),
        ("answer_idx", pa.int32()),
        ("log_likelihood", pa.float32()),  # nats, summed over the answer's tokens
        ("answer_tokens", pa.int32()),
        ("error", pa.string()),  # null when the pair was scored
    ]
)

PAIR_UTILITIES = pa.schema(
    [
        ("example_id", pa.string()),
        ("passage_id", pa.int64()),
        ("utility", pa.float32()),  # of `utility.kind`, the mean over answers; null when none could be scored
    ]
)

REWARDS = pa.schema(
    [
        ("example_id", pa.string()),
        ("passage_id", pa.int64()),
        ("reward", pa.float32()),  # R of the reward model
    ]
)

NEGATIVES = pa.schema(
    [
        ("example_id", pa.string()),
        ("passage_ids", pa.list_(pa.int64())),  # the candidates' pool, in its order
        ("rewards", pa.list_(pa.float32())),
        ("gated", pa.list_(pa.bool_())),  # passed the utility gate: a negative
    ]
)

# A pair that could not be scored has an error and no numbers; every other column is complete.
_MAY_BE_NULL = frozenset({"error", "log_likelihood", "answer_tokens", "utility"})


def validate_table(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """Checks names, types and nulls of `table` and returns it in the schema's column order.

    The large variants of strings and lists hold the same values and are cast to the plain ones.

    Args:
        table: any Arrow table.
        schema: one of this module's schemas.
        where: path or artifact name for the error.

    Raises:
        ArmorError: a missing or unknown column, a wrong type, or a null where none is allowed.
    """
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise ArmorError(f"missing column '{missing[0]}'", where=where, hint=f"expected columns: {', '.join(schema.names)}")
    unknown = [name for name in table.column_names if name not in schema.names]
    if unknown:
        raise ArmorError(f"unknown column '{unknown[0]}'", where=where, hint=f"expected columns: {', '.join(schema.names)}")
    if len(table.column_names) != len(schema.names):
        raise ArmorError("a column name occurs twice", where=where, hint=f"expected columns: {', '.join(schema.names)}")
    for field in schema:
        _check_column(table.column(field.name), field, where)
    return table.select(schema.names).cast(schema)


def _check_column(column: pa.ChunkedArray, field: pa.Field, where: str) -> None:
    if _plain(column.type) != field.type:
        raise ArmorError(f"column '{field.name}' is {column.type}, not {field.type}", where=where, hint="cast it before writing")
    if column.null_count and field.name not in _MAY_BE_NULL:
        raise ArmorError(f"column '{field.name}' has {column.null_count} nulls", where=where, hint="fill or drop those rows")


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind
