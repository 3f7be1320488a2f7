"""Getter of workbook contents; needs the packages of the extra `osworld`."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from paragent._internal.registry import require
from paragent.osworld.evaluators.getters.machine import copy_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.osworld.context import GetterContext

__all__ = ["content_from_vm_file"]

require("openpyxl", "pandas")


async def content_from_vm_file(context: GetterContext, config: Mapping[str, Any]) -> list[str] | None:
    """Return the last row of a workbook of the machine.

    Raises:
        ValueError: other content is requested.
    """
    if (config["file_type"], config["file_content"]) != ("xlsx", "last_row"):
        raise ValueError(f"cannot read {config['file_content']!r} of a file of the type {config['file_type']!r}")
    path = await copy_of(context, config["path"], posixpath.basename(config["path"]))
    if path is None:
        return None
    row: list[str] | None = await context.parse("paragent.osworld.evaluators.metrics.tables:last_row", path)
    return row
