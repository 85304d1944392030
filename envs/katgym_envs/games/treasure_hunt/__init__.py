"""`katgym/TreasureHunt-v0`: find the one chest that all true notes allow."""
