"""`katgym/MathCode-v0`: written problems with a sandboxed Python."""
