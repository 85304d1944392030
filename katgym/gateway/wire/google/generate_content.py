"""Google's `POST /v1/models/MODEL:generateContent`, `:streamGenerateContent`, `:countTokens`.

They stand under `/v1beta` as well. Names are read in camel case and in snake case, as Google does.
The model, and whether there is a stream, stand in the URL (`dialects.py`). Not here: messages
(`contents.py`); writing answers (`generated_content.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katgym.environment.messages import Message
from katgym.gateway.call import CallSampling, ModelCall
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.wire import fields
from katgym.gateway.wire.field_policy import IGNORED_EVERYWHERE, FieldPolicy, log_once
from katgym.gateway.wire.google.contents import Contents
from katgym.gateway.wire.google.generated_content import (
    KEEPALIVE,
    error,
    error_event,
    events,
    render,
    render_count,
)
from katgym.gateway.wire.google.open_api_schema import json_schema

__all__ = ["KEEPALIVE", "ROUTE", "error", "error_event", "events", "parse", "render",
           "render_count", "servable"]  # fmt: skip

ROUTE = "google/generate_content"
_BODY = FieldPolicy(
    where=ROUTE,
    read=frozenset(
        {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model",
         "stream"}
    ),
    ignored=IGNORED_EVERYWHERE | {"safetySettings", "modelArmorConfig", "labels", "serviceTier"},
    refused={
        "cachedContent": "send it as contents",
        "continuationToken": "send the contents that it stands for",
        "outputConfig": "text is what is recorded",
    },
)  # fmt: skip
_CONFIG = FieldPolicy(
    where="generationConfig",
    read=frozenset(
        {"temperature", "topP", "topK", "seed", "candidateCount", "maxOutputTokens",
         "stopSequences", "presencePenalty", "frequencyPenalty", "responseMimeType",
         "responseSchema", "responseJsonSchema", "_responseJsonSchema", "thinkingConfig"}
    ),
    ignored=frozenset({"mediaResolution", "audioTimestamp"}),
    hints=frozenset({"enableEnhancedCivicAnswers", "modelConfig", "modelSelectionConfig",
                     "routingConfig"}),
    refused={
        **dict.fromkeys(
            ("audioTranscriptionConfig", "enableAffectiveDialog", "imageConfig",
             "responseModalities", "speechConfig", "translationConfig"),
            "text is what is recorded",
        ),
        "responseFormat": "give responseMimeType and responseJsonSchema",
        "responseLogprobs": "ask /v1/chat/completions for log-probabilities",
        "logprobs": "ask /v1/chat/completions for log-probabilities",
    },
    neutral={"responseModalities": ["TEXT"]},
)  # fmt: skip
_THINKING = FieldPolicy(
    where="thinkingConfig",
    read=frozenset({"includeThoughts"}),
    hints=frozenset({"thinkingBudget", "thinkingLevel"}),
)
_HOSTED = ("googleSearch", "googleSearchRetrieval", "codeExecution", "urlContext", "googleMaps",
           "fileSearch", "enterpriseWebSearch", "exaAiSearch", "parallelAiSearch", "retrieval",
           "mcpServers")  # fmt: skip
_TOOL = FieldPolicy(
    where="a tool of Google",
    read=frozenset({"functionDeclarations", *_HOSTED}),
    refused={"computerUse": "only Google can describe it to a model; declare functions"},
)
_FUNCTION = FieldPolicy(
    where="a function of Google",
    read=frozenset({"type", "name", "description", "parameters"}),
    hints=frozenset({"response", "responseJsonSchema", "behavior"}),
)
_CHOICE = FieldPolicy(
    where="functionCallingConfig",
    read=frozenset({"mode", "allowedFunctionNames"}),
    ignored=frozenset({"streamFunctionCallArguments"}),  # calls are told whole
)
_TOOL_CONFIG = FieldPolicy(
    where="toolConfig",
    read=frozenset({"functionCallingConfig"}),
    hints=frozenset({"retrievalConfig", "includeServerSideToolInvocations"}),
)


def parse(body: Mapping[str, Any], *, is_counting: bool = False) -> ModelCall:
    """Return the call of a request body; raises `GatewayError`.

    is_counting: whether its tokens are counted alone; then it may stand in a request.
    """
    body = fields.camel_keys(body, "the body")
    if is_counting and body.get("generateContentRequest") is not None:
        inner = fields.camel_keys(body["generateContentRequest"], "generateContentRequest")
        body = {**inner, "model": body.get("model", "")}
    _BODY.check(body)
    config = fields.camel_keys(body.get("generationConfig") or {}, "generationConfig")
    _CONFIG.check(config, "generationConfig.")
    thinking = fields.camel_keys(config.get("thinkingConfig") or {}, "thinkingConfig")
    _THINKING.check(thinking, "thinkingConfig.")
    tools, choice = _choice(body, _tools(body))
    messages = Contents().read(body)
    if not is_counting:
        fields.check_last(messages, "contents")
    return ModelCall(
        route=ROUTE,
        model=fields.as_text(body.get("model", ""), "model").removeprefix("models/"),
        messages=messages,
        tools=tools,
        tool_choice=choice,
        sampling=_sampling(config),
        num_choices=fields.count(config, "candidateCount", 1, fields.MAX_CHOICES) or 1,
        constraints=_constraints(config),
        is_stream=fields.flag(body, "stream", False),
        is_thinking_told=fields.flag(thinking, "includeThoughts", False),
    )


def _sampling(config: Mapping[str, Any]) -> CallSampling:
    extra = {
        "presence_penalty": fields.number(config, "presencePenalty", -2, 2),
        "frequency_penalty": fields.number(config, "frequencyPenalty", -2, 2),
    }
    top_k = fields.number(config, "topK", 0, 2**31 - 1)
    return CallSampling(
        temperature=fields.number(config, "temperature", 0, 100),
        top_p=fields.number(config, "topP", 1e-9, 1),
        top_k=None if top_k is None else int(top_k),
        max_tokens=fields.count(config, "maxOutputTokens", 1),
        stop=fields.stops(config, "stopSequences"),
        seed=fields.count(config, "seed", -(2**63), 2**63 - 1),
        extra={k: v for k, v in extra.items() if v is not None},
    )


def _constraints(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what bends the answer: the schema that it is to follow."""
    kind = config.get("responseMimeType") or "text/plain"
    if kind not in ("text/plain", "application/json"):
        raise GatewayError(
            ErrorKind.UNSUPPORTED,
            f"responseMimeType is text/plain or application/json, got {kind!r:.80}",
        )
    for name in ("responseJsonSchema", "_responseJsonSchema", "responseSchema"):
        schema = config.get(name)
        if schema is None:
            continue
        if kind == "text/plain":
            raise fields.body_error(f"with {name}, responseMimeType is application/json")
        if name == "responseSchema":
            schema = json_schema(schema, name)
        return fields.schema_constraint(schema, name)
    return {} if kind == "text/plain" else {"response_format": {"type": "json_object"}}


def _tools(body: Mapping[str, Any]) -> list[Any]:
    functions = []
    for i, given in enumerate(fields.tool_objects(body)):
        tool = fields.camel_keys(given, f"tools[{i}]")
        _TOOL.check(tool, f"tools[{i}].")
        for kind in sorted(tool.keys() & set(_HOSTED)):
            text = "tools of type %r are left out: Google's servers run them"
            log_once(("Google", kind), text, kind)
        at = f"tools[{i}].functionDeclarations"
        for j, declared in enumerate(fields.as_list(tool.get("functionDeclarations") or [], at)):
            function = dict(fields.camel_keys(declared, f"{at}[{j}]"))
            schema = function.pop("parametersJsonSchema", None)
            if schema is None and function.get("parameters") is not None:
                schema = json_schema(function["parameters"], f"{at}[{j}].parameters")
            functions.append({**function, "type": "function", "parameters": schema})
    return fields.function_tools(
        functions, _FUNCTION, types=("function",), schema="parameters", hosted=(), owner="Google"
    )


def _choice(body: Mapping[str, Any], tools: list[Any]) -> tuple[list[Any], Any]:
    """Return the tools that the model is offered, and which it has to call."""
    config = fields.camel_keys(body.get("toolConfig") or {}, "toolConfig")
    _TOOL_CONFIG.check(config, "toolConfig.")
    at = "functionCallingConfig"
    calling = fields.camel_keys(config.get(at) or {}, at)
    _CHOICE.check(calling, f"toolConfig.{at}.")
    allowed = fields.texts(calling, "allowedFunctionNames")
    names = [tool["function"]["name"] for tool in tools]
    if unknown := set(allowed) - set(names):
        raise fields.body_error(f"allowedFunctionNames has {sorted(unknown)}, which are no tools")
    match str(calling.get("mode") or "AUTO").upper():
        case "NONE":
            return [], "auto"
        case "VALIDATED" if not allowed:
            log_once((ROUTE, "VALIDATED"), "mode VALIDATED is AUTO: arguments are not constrained")
            return tools, "auto"
        case "AUTO" | "MODE_UNSPECIFIED" if not allowed or set(allowed) == set(names):
            return tools, "auto"
        case "ANY" if len(allowed) == 1:
            return tools, {"type": "function", "function": {"name": allowed[0]}}
        case "ANY" if tools and (not allowed or set(allowed) == set(names)):
            return tools, "required"
        case "ANY" if not tools:
            raise fields.body_error(f"{at}.mode is ANY, and there are no functions to call")
        case mode:
            raise GatewayError(
                ErrorKind.UNSUPPORTED,
                f"{at}.mode {mode!r:.80} with {len(allowed)} allowed of {len(names)} functions is"
                " not supported; the mode is AUTO, ANY or NONE, of all functions, or ANY of one",
            )


def servable(message: Message) -> Message:
    """Return an answer as it is served: calls whose arguments are no object are text."""
    return fields.servable(message, is_json_needed=True)
