r"""Thinking in an answer's text: what is cut and what is left, which is what every env reads."""

from __future__ import annotations

import pytest

import katgym
from katgym.environment.thinking import split_thinking

CUT = {
    "<think>Maybe 3? No.</think>\nIt is 4.": "It is 4.",
    "<think></think>\n\n4": "4",
    "<THINK>3</THINK>4": "4",
    "<Thinking>3</ thinking >4": "4",
    "<thought>3</thought>4": "4",
    "<seed:think>3</seed:think>4": "4",
    "[THINK]3[/THINK]4": "4",
    "◁think▷3◁/think▷4": "4",
    "<|START_THINKING|>3<|END_THINKING|>4": "4",
    "<|channel|>analysis<|message|>3<|end|><|start|>assistant<|channel|>final<|message|>4": "4",
    "<|channel>thought\n3<channel|>4": "4",
    "<think>3</think>4<think>5</think>6": "46",
    "<think>a<think>b</think>3</think>4": "4",
    "<think><think>\na</think>4": "4",
    "<think>I close with `</think>` later. 3</think>4": "4",
    # The prompt began it.
    "3\n</think>\n\n4": "4",
    "3</think>3</think>4": "4",
    "thought ```py\n3</think>4 ```py\nx```": "4 ```py\nx```",
    # A closing tag too much.
    "<think>3</think>4</think>\n": "4",
    # No answer.
    "<think>So 4": "",
    "4\n<think>Or 5?": "",
    "Let me see. <think>So 4": "",
    "Okay <think>So 4": "",
    "Okay<think>\nSo 4": "",
    "<think>3</think>\n<think>4": "",
    "<think>a<think>b</think>3</think>": "",
    "3</think>": "",
}
KEPT = [
    "4",
    "A tag <think> in a sentence opens nothing. 4",
    "It begins with <think>, then 4",
    "4, but no <think>",
    "Begin with `<think>`. 4",
    "Write `<think>` and `</think>` around it. 4",
    'I write "<think>plan</think>" first. 4',
    "4. It ends with `</think>`.",
    "```python\nif '</think>' in text:\n    pass\n```\n4",
    "```\n<think>\nhi\n</think>\nhello\n```\n4",
    "If 3 <think of it> 2, then 4",
]


@pytest.mark.parametrize(("text", "answer"), CUT.items())
def test_thinking_is_cut(text, answer):
    thinking, found = split_thinking(text)
    assert (found.strip(), thinking is None) == (answer, False)


@pytest.mark.parametrize("text", KEPT)
def test_tags_that_are_spoken_of_are_text(text):
    assert split_thinking(text) == (None, text)
    assert split_thinking(f"<think>Hm.</think>{text}") == ("Hm.", text)


class Echo(katgym.Env):
    """Says what it read; the last word is the answer."""

    def load_tasks(self, split):
        return [katgym.Task(task_id="a", prompt="Hi.", answer="4")]

    def reply(self, message):
        return message["content"] if self.num_turns == 1 else None

    @katgym.scorer()
    def correct(self):
        return self.final_answer == self.task.answer


def test_envs_read_the_answer_and_the_record_keeps_all():
    env = Echo()
    env.reset(seed=0)
    told = env.step("<think>3</think>4")[0]
    assert told == [katgym.user("4")]
    reward = env.step("<think>3?</think>4")[1]
    assert (reward, env.messages[-1]["content"]) == (1.0, "<think>3?</think>4")
    env.reset(seed=0)
    env.step("x")
    assert env.step("<think>4")[1] == 0.0 and env.final_answer == ""


@pytest.mark.parametrize("unit", ["<think>", "</think>", "\n<think> ", "`<think>`", "```", "<a"])
def test_many_tags_end(unit):
    text = unit * 20_000
    thinking, answer = split_thinking(text)
    assert len(thinking or "") + len(answer) <= len(text)
