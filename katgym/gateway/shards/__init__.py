"""Several gateway processes by session, a store each, under one control surface.

Not here: what one of them does (`katgym.gateway.gateway`).
"""
