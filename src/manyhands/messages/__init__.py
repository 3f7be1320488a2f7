"""What agents say and do: `Msg` between agents, `ActionModel` as the decision of one."""

from manyhands.messages.action import ActionModel
from manyhands.messages.msg import Msg

__all__ = ["ActionModel", "Msg"]
