"""Plugin my_domain: environments for katgym."""
