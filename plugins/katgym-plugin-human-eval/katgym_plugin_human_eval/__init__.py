"""HumanEval's programming problems as a katgym environment."""
