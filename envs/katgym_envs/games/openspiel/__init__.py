"""`katgym/OpenSpiel-v0`: the sequential one- and two-player games of OpenSpiel."""
