"""The shapes of chat servers' answers, and the words of their errors.

Not here: requests (`test_openai_chat.py`).
"""

from __future__ import annotations

import json

import pytest

from katgym.policies.endpoints.chat_answers import error_words, is_overflow, read_answer

OVERFLOWS = [  # of OpenAI, vLLM, SGLang, TGI, llama.cpp, Ollama, LM Studio and those who sell
    {"error": {"code": "context_length_exceeded", "message": "Too much."}},
    "Your input exceeds the context window of this model. Please adjust your input.",
    "This model's maximum context length is 4096 tokens. However, your prompt contains at least"
    " 4097 input tokens, which exceeds this limit even without any output tokens.",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure",
    "Input length (5000) exceeds model's maximum context length (4096).",
    "The input (210000 tokens) is longer than the model's context length (200000 tokens).",
    "Requested token count exceeds the model's maximum context length of 4096 tokens.",
    {"error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000"},
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"
    " `inputs` tokens and 512 `max_new_tokens`",
    {"error": {"type": "exceed_context_size_error", "code": 400, "n_ctx": 4096}},
    "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    {"error": "the input length exceeds the context length"},
    "prompt too long; exceeded max context length by 12 tokens",
    "The number of tokens to keep from the initial prompt is greater than the context length",
    "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded"
    " with context length of only 4096 tokens",
    {"type": "error", "error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}},
    [{"error": {"code": 400, "message": "The input token count (1100000) exceeds the maximum number"
                " of tokens allowed (1048576).", "status": "INVALID_ARGUMENT"}}],
    "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum"
    " context length",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081",
    "Input is too long for requested model.",
    "Please reduce the length of the messages or completion.",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "invalid params, context window exceeds limit (2013)",
    "Invalid request: Your request exceeded model token limit: 8192",
    "prompt token count of 131100 exceeds the limit of 128000",
    "Prompt has 32769 tokens, but the configured context size is 32768 tokens",
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
    {"error": {"code": "1261", "message": "Prompt exceeds max length"}},
    "Prompt length (5000) exceeds maximum input length (4096)",
    {"error": {"code": "string_above_max_length", "message": "Invalid 'messages[1].content':"
               " string too long. Expected a string with maximum length 1048576"}},
    "litellm.ContextWindowExceededError: it is full",
    {"error": {"message": "Provider returned error", "code": 400,
               "metadata": {"raw": "{\"error\":\"context_length_exceeded\"}"}}},
    {"detail": [{"type": "value_error", "loc": ["body"], "msg": "prompt too long"}]},
    "输入内容过长", "请求超出模型最大长度限制",
]  # fmt: skip
NO_OVERFLOWS = [
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
    "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens",
    "max_tokens exceeds the maximum allowed number of output tokens (8192)",
    "Range of max_tokens should be [1, 8192]",
    "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 9000",
    "You exceeded your current quota, please check your plan and billing details. Input tokens: 9",
    "This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens",
    "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64",
    "tools.0.custom.description: String should have at most 1024 characters",
    "Invalid value: 'temperature' exceeds the maximum of 2",
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
    " 'max_completion_tokens' instead.",
    "This request would exceed your account's rate limit of 30000 input tokens per minute",
    "You have exceeded the number of tokens of your monthly quota",
    "stop: list should have at most 4 items",
    {"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required",
                 "input": {"messages": [{"content": "the prompt is too long for the context"}]}}]},
    "The model `gpt-9` does not exist",
]  # fmt: skip


def words_of(told):
    return error_words(json.dumps({"error": {"message": told}} if isinstance(told, str) else told))


@pytest.mark.parametrize("told", OVERFLOWS, ids=str)
def test_a_full_context_is_known_in_every_servers_words(told):
    assert is_overflow(words_of(told))


@pytest.mark.parametrize("told", NO_OVERFLOWS, ids=str)
def test_no_other_refusal_is_one(told):
    assert not is_overflow(words_of(told))


def read(message, **more):
    answer = {"choices": [{"message": message, "finish_reason": "stop"}], **more}
    return read_answer(answer, source="it")


@pytest.mark.parametrize(
    ("message", "content", "reasoning"),
    [
        ({"content": "a", "reasoning": "hm"}, "a", "hm"),
        ({"content": "a", "reasoning_content": "hm", "reasoning": None}, "a", "hm"),
        ({"content": "a", "reasoning": "hm", "reasoning_content": "hm"}, "a", "hm"),
        ({"content": "a", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
         "a", "hm"),
        ({"content": "a", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
         "a", ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", ""),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                      {"type": "text", "text": "a"}]}, "a", "hm"),
        ({"content": ["a", "b"]}, "ab", ""),
        ({"content": {"type": "text", "text": "a"}}, "a", ""),
        ({"content": []}, "", ""),
        ({"content": None, "refusal": "No."}, "No.", ""),
        ({"role": None, "content": "a", "tool_calls": None}, "a", ""),
        ({}, "", ""),
    ],
)  # fmt: skip
def test_what_was_said_and_thought_is_read_in_every_shape(message, content, reasoning):
    found = read(message).message
    assert (found["content"], found.get("reasoning_content", "")) == (content, reasoning)


@pytest.mark.parametrize(
    "told",
    [
        {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
        {"tool_calls": [{"id": "c", "index": 0, "function": {"name": "f", "arguments": {}}}]},
        {"tool_calls": {"id": "c", "function": {"name": "f", "arguments": "{}"}}},
        {"function_call": {"name": "f", "arguments": "{}"}},
    ],
)  # fmt: skip
def test_calls_are_read_in_every_shape(told):
    found = read({"content": None, **told})
    assert found.finish_reason == "tool_calls"
    (call,) = found.message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "{}"}


def test_finish_reasons_are_three_words():
    words = {"max_tokens": "length", "MAX_TOKENS": "length", "end_turn": "stop", None: "stop"}
    for told, meant in words.items():
        answer = {"choices": [{"message": {"content": "x"}, "finish_reason": told}]}
        assert read_answer(answer, source="it").finish_reason == meant
