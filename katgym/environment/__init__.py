"""The environment contract: envs, tasks, tools and their scheduler, rewards, messages, failures."""
