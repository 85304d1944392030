"""Other projects' agents on katgym's tasks and in katgym's sandboxes."""
