"""The datasets of reasoning-gym 0.1.25: envs and their answers' forms; the others, and why not.

The lists are written down so that nothing here imports reasoning-gym.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

DATASETS = tuple(
    """
ab advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation
binary_matrix bitwise_arithmetic caesar_cipher calendar_arithmetic chain_sum circuit_logic
color_cube_rotation complex_arithmetic count_bits count_primes countdown course_schedule
cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery family_relationships
figlet_font fraction_simplification futoshiki game_of_life game_of_life_halting gcd graph_color
group_anagrams gsm_symbolic jugs kakurasu knights_knaves largest_island lcm leg_counting
letter_counting letter_jumble mahjong_puzzle manipulate_matrix maze mini_sudoku
modulo_grid n_queens needle_haystack number_filtering number_format number_sequence
number_sorting palindrome_generation palindrome_partitioning path_star polynomial_equations
power_function prime_factorization products quantum_lock rearc rectangle_count rotate_matrix
rotten_oranges rubiks_cube self_reference sentence_reordering shortest_path simple_equations
simple_geometry simple_integration sokoban spell_backward spiral_matrix string_insertion
string_manipulation string_splitting string_synthesis sudoku survo syllogism time_intervals
tower_of_hanoi tsumego word_sequence_reversal word_sorting zebra_puzzles
""".split()  # noqa: SIM905 - ninety strings in a list are ninety lines
)

EXCLUDED: Mapping[str, str] = {
    "acre": "task i depends on how many tasks the dataset has",
    "boxnet": "has no gold answer",
    "codeio": "not reproducible: two instances with one seed ask different questions",
    "coin_flip": "its scorer pays '0' for most probabilities",
    "composite": "a mixture of other datasets, which are envs themselves",
    "intermediate_integration": "its scorer pays the unevaluated `Integral(f, x)`, as do its golds",
    "isomorphic_strings": "not reproducible: depends on the process's string hash seed",
    "knight_swap": "not reproducible: depends on the process's string hash seed",
    "list_functions": "not reproducible: depends on the process's string hash seed",
    "polynomial_multiplication": "not reproducible: depends on the process's string hash seed",
    "pool_matrix": "seeds NumPy's global generator, which all threads share",
    "propositional_logic": "its scorer pays a copy of a premise as the conclusion",
    "puzzle24": "its scorer does not look whether the given numbers are used",
    "ransom_note": "not reproducible: depends on the process's string hash seed",
    "rush_hour": "has no gold answer",
    "word_ladder": "not reproducible: depends on the process's string hash seed",
}

GOLD_IN_METADATA: Mapping[str, str] = {
    "graph_color": "possible_answer",
    "rubiks_cube": "example_correct_answer",
}
"""Datasets with many right answers and `answer=None`, and where their metadata keeps one."""

_NUMBERS = r"-?\d+(?:\s+-?\d+)*"
_INTEGER = r"(?<!\d)\d{1,9}(?!\d)"
_TIMES = r"(?<!\*)\*(?!\*)"
_POWER = r"\*\* ?\d{1,2}(?!\d|\.|\s*\*\*)"
# At most one power of a bracket: ((9**99)**99)**99 would never end.
_ONE_BRACKET_POWER = r"(?!.*\)\s*\*\*.*\)\s*\*\*)"
_DECIMALS = r"(?:\.\d{1,9}(?!\d))?"
_POLYNOMIAL = rf"{_ONE_BRACKET_POWER}(?:{_INTEGER}{_DECIMALS}|{_POWER}|{_TIMES}|[-xXC+/() ])+"

ANSWER_FORMS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(form)
    for name, form in {
        # These scorers call eval() or sympy's parser, an eval() too, on the answer.
        "binary_matrix": _NUMBERS,
        "countdown": rf"(?:{_INTEGER}|(?<![*/])[*/](?![*/])|[-+() ])+",
        "n_queens": r"[Q_]+(?:\s+[Q_]+)*",
        "simple_integration": _POLYNOMIAL,
        "spiral_matrix": _NUMBERS,
        "string_insertion": r"[A-Z]+",
        # These find the answer in any text around it, or take "nan" for every number.
        "complex_arithmetic": r"[-+0-9.ij ]+",
        "fraction_simplification": r"\$?(?:\d+/\d+|\\d?frac\{\d+\}\{\d+\})\$?",
        "gsm_symbolic": r"-?\d+(?:\.\d+)?",
        "kakurasu": r"[01]+(?:\s+[01]+)*",
        "knights_knaves": r"\w+ is an? \w+(?:(?:, and|,| and) \w+ is an? \w+)*\.?",
        "quantum_lock": r"[A-C](?:\s*→\s*[A-C])*",
        "sokoban": r"[LRUD]+",
        "survo": _NUMBERS,
        "time_intervals": r"(?:\d+ days?(?:, )?)?(?:\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?",
    }.items()
}
"""What the whole answer has to look like before the upstream scorer sees it."""


def env_name(dataset: str) -> str:
    """Return the env's name for a dataset: `leg_counting` is `LegCounting`."""
    return "".join(part.capitalize() for part in dataset.split("_"))
