"""JSON texts of the records in `view/api.py`."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

__all__ = ["to_json"]


def to_json(record: Any) -> bytes:
    """Return a record, or a structure of records, as JSON in UTF-8. Numbers that are not finite become null."""
    try:
        return _encoded(record)
    except ValueError:  # JSON has no NaN and no infinity, but Python reads them from replies of models
        return _encoded(_finite(record))


def _encoded(record: Any) -> bytes:
    # Not `dataclasses.asdict`: it copies lists element by element, and a table has 400,000 of them.
    text = json.dumps(record, default=_as_dict, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode(errors="replace")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return _finite(_as_dict(value)) if is_dataclass(value) else value


def _as_dict(record: Any) -> dict[str, Any]:
    if not is_dataclass(record):
        raise TypeError(f"not a record: {type(record).__name__}")
    return {field.name: getattr(record, field.name) for field in fields(record)}
