"""Attacks on the grader, as data; `test_attack_suite.py` runs them, `attack_table.py` shows."""
