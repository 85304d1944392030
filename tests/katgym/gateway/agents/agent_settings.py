"""Settings of shipped agents: each is told its model server, in its environment and its home.

Each function takes a gateway's session URL and a home, writes files there, and returns variables.
Not here: the agents (`shipped_agents.py`).
"""

from __future__ import annotations

import json
from pathlib import Path

MODEL = "tiny"


def write_file(path: Path, text: str) -> None:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def claude(url: str, home: Path) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "any", "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_SMALL_FAST_MODEL": MODEL, "IS_SANDBOX": "1", "DISABLE_TELEMETRY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }  # fmt: skip


def codex(url: str, home: Path) -> dict[str, str]:
    write_file(
        home / ".codex/config.toml",
        f'model = "{MODEL}"\nmodel_provider = "katgym"\n[model_providers.katgym]\nname = "katgym"\n'
        f'base_url = "{url}/v1"\nenv_key = "GATEWAY_KEY"\nwire_api = "responses"\n',
    )
    return {"GATEWAY_KEY": "any"}


def gemini(url: str, home: Path) -> dict[str, str]:
    auth = {"auth": {"selectedType": "gemini-api-key"}}
    write_file(home / ".gemini/settings.json", json.dumps({"security": auth}))
    return {
        "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "any", "GEMINI_MODEL": MODEL,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }  # fmt: skip


def opencode(url: str, home: Path, *, context: int = 100_000) -> dict[str, str]:
    model = {"name": MODEL, "limit": {"context": context, "output": 4_000}, "attachment": True,
             "modalities": {"input": ["text", "image"], "output": ["text"]}}  # fmt: skip
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "katgym",
        "options": {"baseURL": f"{url}/v1", "apiKey": "any"},
        "models": {MODEL: model},
    }
    name = f"katgym/{MODEL}"
    config = {"model": name, "small_model": name, "provider": {"katgym": provider},
              "permission": "allow"}  # fmt: skip
    write_file(home / ".config/opencode/opencode.json", json.dumps(config))
    return {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def qwen(url: str, home: Path) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "any", "OPENAI_MODEL": MODEL}


def pi(url: str, home: Path, *, context: int = 128_000) -> dict[str, str]:
    model = {"id": MODEL, "input": ["text", "image"], "contextWindow": context, "maxTokens": 4_000}
    provider = {"baseUrl": f"{url}/v1", "apiKey": "any", "api": "openai-completions"}
    config = {"providers": {"katgym": {**provider, "models": [model]}}}
    write_file(home / ".pi/agent/models.json", json.dumps(config))
    kept = {"compaction": {"enabled": True, "reserveTokens": 1_000, "keepRecentTokens": 10}}
    write_file(home / ".pi/agent/settings.json", json.dumps(kept))
    return {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"}


def copilot(url: str, home: Path) -> dict[str, str]:
    return {
        "COPILOT_PROVIDER_BASE_URL": f"{url}/v1", "COPILOT_PROVIDER_API_KEY": "any",
        "COPILOT_MODEL": MODEL, "COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false",
    }  # fmt: skip


def cline(url: str, home: Path) -> dict[str, str]:
    name = "openai-compatible"
    settings = {"provider": name, "apiKey": "any", "model": MODEL, "baseUrl": f"{url}/v1"}
    provider = {"settings": settings, "updatedAt": "2026-01-01T00:00:00Z", "tokenSource": "manual"}
    config = {"version": 1, "lastUsedProvider": name, "modes": {}, "providers": {name: provider}}
    write_file(home / ".cline/data/settings/providers.json", json.dumps(config))
    return {"CLINE_TELEMETRY_DISABLED": "1"}


def litellm(url: str, home: Path) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "any", "NO_COLOR": "1",
            "OPENAI_API_BASE": f"{url}/v1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # fmt: skip


def mini(url: str, home: Path) -> dict[str, str]:
    own = {"MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1"}
    return {**litellm(url, home), **own, "MSWEA_COST_TRACKING": "ignore_errors"}
