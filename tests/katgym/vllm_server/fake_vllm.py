"""Stands in for `python -m vllm...` where a test needs a process: a real server, without a model.

What it does is the model's name: `healthy`, `stubborn` (ignores TERM, and so does its child, which
has a session of its own), `slow` (never healthy), `weak` (ends at its first completion), or the
text of the error it fails with. Asked for `/crash` it ends.
"""

import http.server
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {"data": [{"max_model_len": 64}]})
        if self.path == "/crash":
            print("RuntimeError: the engine died", flush=True)
            os._exit(3)

    def do_POST(self):
        if self.server.model != "weak":
            self.answer(200, {})
            return
        print("ERROR 11-28 [core.py:1] RuntimeError: head_dim=16", flush=True)
        for _ in range(3000):  # a trace for each request that is lost
            print("ERROR 11-28 [llm.py:1] EngineDeadError: See stack trace (above)", flush=True)
        self.answer(500, {})
        os._exit(0)  # as vLLM does

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def main(arguments):
    options = dict(itertools.pairwise(arguments))
    model, port = Path(options["--model"]).name, int(options["--port"])
    print("arguments:", *arguments, flush=True)
    print("dev mode:", os.environ.get("VLLM_SERVER_DEV_MODE"), flush=True)
    if model not in ("healthy", "stubborn", "slow", "weak"):
        raise SystemExit(model)
    if model == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=model == "stubborn")
    print("pids:", os.getppid(), os.getpid(), child.pid, flush=True)
    if model == "slow":
        time.sleep(3600)
    server = http.server.HTTPServer(("127.0.0.1", port), Handler)
    server.model = model
    server.serve_forever()


main(sys.argv[3:])  # after: -m vllm.entrypoints.openai.api_server
