"""Benchmarks in tables: Parquet, Arrow, Feather and CSV files, and datasets of the Hugging Face hub. Rows are read in batches."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import functools
import gzip
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.file_errors import unreadable
from paragent._internal.registry import require_extra
from paragent._internal.text import well_formed_data
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HUB", "is_hub", "is_table", "stored_at", "table_rows"]

HUB = "hf:"
"""The beginning of `--data` for datasets of the hub."""
_BATCH = 256
_LARGEST_FIELD = 16 << 20
"""Characters of one field of a CSV file."""
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_ARROW = (".arrow", ".feather")


def is_hub(path: Path) -> bool:
    """Return whether `--data` names a dataset of the hub: `hf:NAME`, `hf:NAME:SPLIT` or `hf:NAME/CONFIG:SPLIT`."""
    return str(path).startswith(HUB)


def is_table(path: Path) -> bool:
    """Return whether a file is a table, by its name."""
    return is_hub(path) or _kind(path) in {".parquet", *_ARROW, *_DELIMITERS}


def stored_at(path: Path) -> list[Path]:
    """Return the files and folders that have the tasks of `--data`, and so the answers, which agents must not read."""
    if not is_hub(path):
        return [path]
    name, _, _ = _hub_name(str(path).removeprefix(HUB))
    cache = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    return [cache, *([Path(name)] if Path(name).is_dir() else [])]


def table_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows as JSON objects; binary columns, such as images, are left out.

    Raises:
        ConfigError: the file or the dataset cannot be read.
        MissingExtra: the packages to read it are not installed.
    """
    if is_hub(path):
        for batch in _hub_dataset(str(path)).with_format("arrow").iter(_BATCH):
            yield from map(_plain, batch.to_pylist())
        return
    try:
        kind = _kind(path)
        rows = _csv_rows(path, _DELIMITERS[kind]) if kind in _DELIMITERS else _arrow_rows(path, kind)
        yield from map(_plain, rows)
    except (OSError, EOFError, ValueError, csv.Error) as error:  # pyarrow's errors are errors of values
        raise ConfigError(f"--data: {unreadable(path, error)}") from error


def _kind(path: Path) -> str:
    return Path(path.stem).suffix.lower() if path.suffix == ".gz" else path.suffix.lower()


def _csv_rows(path: Path, delimiter: str) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(max(csv.field_size_limit(), _LARGEST_FIELD))
    open_file = gzip.open if path.suffix == ".gz" else open
    with open_file(path, "rt", encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num} does not have {len(reader.fieldnames or ())} fields")
            yield row


def _arrow_rows(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    require_extra(f"--data {path}", extra="parquet", package="pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == ".parquet":
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                yield from batch.to_pylist()
        return
    with pa.memory_map(str(path)) as source:
        stream = source.read(6) != b"ARROW1"  # `datasets` writes streams, pandas and polars write files
        source.seek(0)
        if stream:
            batches = iter(pa.ipc.open_stream(source))
        else:
            file = pa.ipc.open_file(source)
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH):
                yield from batch.slice(start, _BATCH).to_pylist()


@functools.lru_cache(maxsize=4)
def _hub_dataset(name: str) -> Any:
    """Return a split of a dataset, which is in files of the local cache and not in memory.

    Raises:
        ConfigError: it cannot be loaded.
        MissingExtra: `datasets` is not installed.
    """
    require_extra(f"--data {name}", extra="hf", package="datasets")
    import datasets

    path, config, split = _hub_name(name.removeprefix(HUB))
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(path, config, split=split)
    except ConnectionError as error:
        raise ConfigError(
            f"--data: the Hugging Face hub cannot be reached, and {path!r} is not in the local cache: {error}. Check the "
            "network and HF_HUB_OFFLINE, or load the dataset where the hub can be reached and use a local file"
        ) from error
    except Exception as error:  # the library raises errors of many packages for unknown names, configs and splits
        raise ConfigError(f"--data: cannot load {name}: {error}") from error
    if split is None:
        splits = list(loaded)
        if len(splits) != 1:
            config_name = f"/{config}" if config else ""
            raise ConfigError(
                f"--data: {path} has the splits {', '.join(splits)}; choose one: --data {HUB}{path}{config_name}:{splits[-1]}"
            )
        loaded = loaded[splits[0]]
    return loaded


def _hub_name(name: str) -> tuple[str, str | None, str | None]:
    """Return the name or folder of a dataset, its config and its split."""
    before, separator, split = name.rpartition(":")
    path, chosen = (before, split) if separator else (name, None)
    if not path or chosen == "":
        raise ConfigError(f"--data: {HUB}{name} is not of the form hf:NAME, hf:NAME:SPLIT or hf:NAME/CONFIG:SPLIT")
    parts = path.split("/")
    if path.startswith(("/", "./", "../", "~")) or len(parts) < 3:
        return str(Path(path).expanduser()) if path.startswith("~") else path, None, chosen
    return "/".join(parts[:2]), "/".join(parts[2:]), chosen


def _plain(value: Any) -> Any:
    """Return a value of a table as JSON data."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items() if not isinstance(one, bytes)}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return None
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | dt.timedelta):
        return str(value)
    return well_formed_data(value)
