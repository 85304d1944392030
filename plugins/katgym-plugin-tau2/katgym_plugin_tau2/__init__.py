"""tau2's customer service of an airline, a shop and a phone company as katgym environments."""
