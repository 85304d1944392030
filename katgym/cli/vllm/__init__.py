"""Start, watch and look at vLLM servers, the policy of `vllm:`.

vLLM runs in an environment of its own, since its pins would fight katgym's; `install` makes it.

example:
  katgym vllm install --device cpu
  katgym vllm serve Qwen/Qwen3-0.6B --port 8000
  katgym vllm status http://localhost:8000
"""

SUBCOMMANDS = {
    "serve": "start a server and watch it until Ctrl-C",
    "receive": "take a run's new weights on a server's machine, as what changed",
    "install": "make the environment that servers run in, once",
    "attach": "wait for a running server, then show what it is",
    "status": "show what a running server is: models, version, routes",
}
"""Subcommand -> its line of help, with a module `<name>_command` here."""
