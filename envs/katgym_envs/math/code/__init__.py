"""`katgym/MathCode-v1`: written problems with a sandboxed Python."""
