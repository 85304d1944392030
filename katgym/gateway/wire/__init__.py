"""The APIs agents speak: their requests become `ModelCall`s, replies and errors take their shapes.

Not here: where the answers come from (`katgym.gateway.answering`).
"""
