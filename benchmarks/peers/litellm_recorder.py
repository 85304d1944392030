"""Writes what LiteLLM's proxy shows a callback of each call, a JSON line each.

Not here: the proxy's start (`../gateway.py`).
"""

import json
import os

from litellm.integrations.custom_logger import CustomLogger


class Recorder(CustomLogger):
    """Appends to the file that the variable RECORDS names."""

    def __init__(self):
        super().__init__()
        self.file = open(os.environ["RECORDS"], "a")  # noqa: SIM115 - as long as the process

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        record = {"messages": kwargs.get("messages"), "response": response_obj.model_dump()}
        self.file.write(json.dumps(record, default=str) + "\n")
        self.file.flush()


recorder = Recorder()
