"""The problems that come with katgym, and the script that makes them."""
