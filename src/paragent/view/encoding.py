"""JSON texts of the records in `view/api.py`."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

__all__ = ["to_json"]


def to_json(record: Any) -> bytes:
    """Return a record, or a structure of records, as JSON in UTF-8."""
    # Not `dataclasses.asdict`: it copies lists element by element, and a table has 400,000 of them.
    return json.dumps(record, default=_as_dict, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _as_dict(record: Any) -> dict[str, Any]:
    if not is_dataclass(record):
        raise TypeError(f"not a record: {type(record).__name__}")
    return {field.name: getattr(record, field.name) for field in fields(record)}
