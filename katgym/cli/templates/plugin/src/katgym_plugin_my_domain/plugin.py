"""Registration of its environments; imported by every katgym command, so it imports nothing heavy."""

from katgym.hookspecs import RegisterEnv, hookimpl


@hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register the plugin's envs; a module is imported when its env is made."""
    register(
        "my_domain/MyDomain-v0",
        "katgym_plugin_my_domain.my_domain:MyDomain",
        description="A tool opens a door; the answer is what lies behind it.",
    )
