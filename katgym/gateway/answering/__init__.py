"""Ways to make a model server answer a call: which of its routes, and who renders and parses.

Not here: the agents' APIs (`katgym.gateway.wire`).
"""
