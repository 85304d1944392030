"""`katgym/TreasureHunt-v1`: find the one chest that all true notes allow."""
