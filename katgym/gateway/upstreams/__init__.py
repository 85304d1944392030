"""Model servers behind a gateway: choice among them, circuit breakers, probes, failover.

Not here: what is asked of them (`katgym.gateway.answering`).
"""
