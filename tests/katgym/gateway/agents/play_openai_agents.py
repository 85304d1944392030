"""Plays agents of openai-agents, unchanged: tools, an agent used as a tool, a hand-off.

    python play_openai_agents.py responses|chat_completions

They find their model by OPENAI_BASE_URL and OPENAI_API_KEY alone. The last line of output is a JSON
object: what was said and which places were looked at. Not here: what the model answers.
"""

from __future__ import annotations

import json
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

looked: list[int] = []


@function_tool
def look(x: int) -> str:
    """Look at a place.

    Args:
        x: which place
    """
    looked.append(x)
    return f"place {x}"


def main() -> None:
    """Play."""
    set_default_openai_api(sys.argv[1])
    set_tracing_disabled(True)
    expert = Agent(name="expert", instructions="You know places.", model="tiny", tools=[look])
    writer = Agent(
        name="writer",
        handoff_description="Writes reports.",
        instructions="You write reports.",
        model="tiny",
    )
    scout = Agent(
        name="scout",
        instructions="You look around.",
        model="tiny",
        tools=[look, expert.as_tool("ask_expert", "Ask who knows places.")],
        handoffs=[writer],
    )
    result = Runner.run_sync(scout, "What is here?")
    usage = result.context_wrapper.usage
    told = {"said": result.final_output, "last_agent": result.last_agent.name, "looked": looked}
    told |= {"num_calls": usage.requests, "num_output_tokens": usage.output_tokens}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
