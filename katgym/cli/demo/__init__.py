"""`katgym demo`: katgym's own demos, made of the commands that a user would type.

Not here: the training demo, `katgym demo train` (`katgym_trainer.cli.demo`).
"""
