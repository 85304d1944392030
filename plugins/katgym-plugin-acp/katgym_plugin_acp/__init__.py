"""An agent that speaks the Agent Client Protocol plays any env."""
