"""The gateway over HTTP: routes of agents and of its owner, keys, streams, the server around them.

Not here: what becomes of a call (`katgym.gateway.gateway`).
"""
