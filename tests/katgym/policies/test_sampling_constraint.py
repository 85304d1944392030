"""What counts as a constraint of sampling, by every parameter that calls are recorded with."""

from __future__ import annotations

from typing import Any

import pytest

from katgym import Turn
from katgym.gateway.wire.fields import CONSTRAINTS, SAMPLING_EXTRAS
from katgym.policies.sampling_constraint import find_constraint

SCHEMA = {"type": "object", "required": ["a"]}
JSON_FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "look"}}
FREE: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_tokens": 9, "seed": 3, "n": 2},
    {"stop": ["x"], "stop_token_ids": [5], "include_stop_str_in_output": True},
    {"min_p": 0, "min_tokens": 0, "ignore_eos": False, "bad_words": [], "logit_bias": {}},
    {"min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0, "repetition_penalty": 1.0},
    {"logit_bias": {"5": 0, "6": 0.0}, "allowed_token_ids": [], "logits_processors": []},
    {"min_p": None, "logit_bias": None, "response_format": None, "xtc_probability": None},
    {"response_format": {"type": "text"}, "structured_outputs": {}, "tool_choice": "auto"},
    {"tool_choice": "none"},
    {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    {"structured_outputs": {"json": None, "json_object": False, "whitespace_pattern": " ?"}},
    {"constraints": {"chat_template_kwargs": {"enable_thinking": False}}},
    {"constraints": {"reasoning_effort": "high"}, "constraint": ""},
    {"constraints": {}},
    {"constraints": None},
]
HELD: list[tuple[dict[str, Any], str]] = [
    ({"constraints": {"response_format": JSON_FORM}}, "json_schema"),
    ({"constraints": {"response_format": {"type": "json_object"}}}, "json_object"),
    ({"constraints": {"response_format": {"type": "structural_tag"}}}, "structural_tag"),
    ({"constraints": {"response_format": {}}}, "None"),
    ({"constraints": {"structured_outputs": {"json": {}}}}, "json"),
    ({"constraints": {"structured_outputs": {"regex": "a+", "json": None}}}, "regex"),
    ({"constraints": {"structured_outputs": {"choice": ["a"]}}}, "choice"),
    ({"constraints": {"structured_outputs": {"grammar": "root ::= x"}}}, "grammar"),
    ({"constraints": {"guided_regex": "a+"}}, "guided_regex"),
    ({"constraints": {"made_up": 1}}, "made_up"),
    ({"constraints": "made up"}, "constraints"),
    ({"response_format": JSON_FORM}, "json_schema"),
    ({"structured_outputs": {"choice": ["a"]}}, "choice"),
    ({"structured_outputs": "a+"}, "structured_outputs"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": NAMED}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "look"}}, "tool_choice"),
    ({"logit_bias": {"5": 0, "6": -100}}, "logit_bias"),
    ({"min_p": 0.05}, "min_p"),
    ({"frequency_penalty": 0.1}, "frequency_penalty"),
    ({"presence_penalty": -0.1}, "presence_penalty"),
    ({"repetition_penalty": 1.05}, "repetition_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"min_tokens": 1}, "min_tokens"),
    ({"ignore_eos": True}, "ignore_eos"),
    ({"bad_words": ["x"]}, "bad_words"),
    ({"bad_words": "x"}, "bad_words"),
    ({"allowed_token_ids": [1]}, "allowed_token_ids"),
    ({"logits_processors": ["m.f"]}, "logits_processors"),
    ({"thinking_token_budget": 0}, "thinking_token_budget"),
    ({"xtc_probability": 0.1}, "xtc_probability"),
    ({"made_up": {}}, "made_up"),
    ({"min_p": 0.1, "constraints": {"response_format": JSON_FORM}}, "min_p+json_schema"),
    ({"constraint": "json_schema:ab", "min_p": 0.1}, "json_schema"),
]


@pytest.mark.parametrize("sampling", FREE, ids=str)
def test_what_bends_nothing_is_free(sampling: dict[str, Any]) -> None:
    assert find_constraint(sampling) == Turn(sampling=sampling).constraint == ""


@pytest.mark.parametrize(("sampling", "kinds"), HELD, ids=str)
def test_what_bends_the_distribution_is_named(sampling: dict[str, Any], kinds: str) -> None:
    free = {"temperature": 1.0, "max_tokens": 9, "seed": 3}
    found = find_constraint({**free, **sampling})
    assert found.partition(":")[0] == kinds and found.partition(":")[2]
    assert Turn(sampling=sampling).constraint == found  # whatever else was asked for


def test_every_parameter_that_the_gateway_passes_on_is_known() -> None:
    told = {name for sampling in FREE for name in sampling}
    told |= {name for sampling in FREE for name in sampling.get("constraints") or ()}
    of_templates = {"chat_template_kwargs", "reasoning_effort"}
    assert set(SAMPLING_EXTRAS) | {"structured_outputs"} | of_templates <= told
    older = {name for name in CONSTRAINTS if name.startswith("guided_")}
    assert all(find_constraint({"constraints": {name: {}}}) for name in older)


def test_the_hash_is_of_all_that_held_the_answer() -> None:
    look = [{"type": "function", "function": {"name": "look"}}]
    asked: list[tuple[dict[str, Any], list[Any]]] = [
        ({"tool_choice": "required"}, look),
        ({"tool_choice": "required"}, [*look, *look]),
        ({"tool_choice": NAMED}, look),
        ({"min_p": 0.1}, []),
        ({"min_p": 0.2}, []),
    ]
    assert len({find_constraint(*one) for one in asked}) == len(asked)
    assert find_constraint({"min_p": 0.1}, look) == find_constraint({"min_p": 0.1})
