"""What agents say and do: `Msg` between agents, `ActionModel` as the decision of one."""

from paragent.messages.action import ActionModel
from paragent.messages.msg import Msg

__all__ = ["ActionModel", "Msg"]
