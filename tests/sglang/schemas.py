"""Fifty JSON schemas whose answers are short, whatever a model of random weights likes best."""

import random
from typing import Any

Schema = dict[str, Any]

_WORDS = ("alpha", "beta", "page", "slot", "rank", "north", "south", "on", "off", "none")


def make_schemas(count: int, seed: int = 0) -> list[Schema]:
    """Objects of two or three fields, each of another kind, some of them objects and arrays again."""
    source = random.Random(seed)
    return [_object(source, depth=2) for _ in range(count)]


def _object(source: random.Random, depth: int) -> Schema:
    names = source.sample(_WORDS, source.randint(2, 3))
    return {
        "type": "object",
        "properties": {name: _value(source, depth) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _value(source: random.Random, depth: int) -> Schema:
    kinds: list[Schema] = [
        {"type": "string", "enum": source.sample(_WORDS, 3)},
        {"type": "boolean"},
        {"type": "integer", "minimum": 0, "maximum": source.choice((9, 99, 255))},
        {"type": "string", "pattern": source.choice(("^[a-f]{3}$", "^[0-9]{2}-[A-Z]$"))},
        {"type": "string", "maxLength": source.randint(1, 6)},
        {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    ]
    if depth:
        kinds.append(_object(source, depth - 1))
        kinds.append({"type": "array", "items": _value(source, 0), "minItems": 1, "maxItems": 3})
    return source.choice(kinds)
