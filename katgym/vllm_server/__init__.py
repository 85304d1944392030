"""vLLM servers: started, watched, controlled, sampled from. Imports neither vllm nor torch."""

from katgym.vllm_server.config import Device, LogprobsMode, TransferBackend, VllmServerConfig
from katgym.vllm_server.control import Abilities, VllmControl
from katgym.vllm_server.server import ServerError, VllmServer
from katgym.vllm_server.status import ServerStatus, attach, server_status
from katgym.vllm_server.token_api import SampledTokens, TokenRequest
from katgym.vllm_server.token_client import TokenClient

__all__ = [
    "Abilities",
    "Device",
    "LogprobsMode",
    "SampledTokens",
    "ServerError",
    "ServerStatus",
    "TokenClient",
    "TokenRequest",
    "TransferBackend",
    "VllmControl",
    "VllmServer",
    "VllmServerConfig",
    "attach",
    "server_status",
]
