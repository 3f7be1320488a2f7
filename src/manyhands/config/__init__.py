"""The settings of a run."""

from manyhands.config.engine_name import EngineName
from manyhands.config.run_config import RunConfig

__all__ = ["EngineName", "RunConfig"]
