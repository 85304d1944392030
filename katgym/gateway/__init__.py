"""The data plane: a gateway between agents and model servers that keeps every sampled token.

`GatewayClient` needs httpx alone; the server needs `katgym[serve]` and is in `server/`.

Not here: what is kept and read again (`katgym.rollout_store`).
"""

from katgym.gateway.client import AgentSession, GatewayClient
from katgym.gateway.config import GatewayConfig

__all__ = ["AgentSession", "GatewayClient", "GatewayConfig"]
