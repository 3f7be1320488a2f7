"""The settings of a run."""

from paragent.config.engine_name import EngineName
from paragent.config.run_config import RunConfig

__all__ = ["EngineName", "RunConfig"]
