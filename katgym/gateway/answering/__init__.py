"""How a model server's answer to a call is made: which of its routes, and who renders and parses.

Not here: the agents' APIs (`katgym.gateway.wire`).
"""
