"""Backend "triton" of tree attention: kernels, their configurations, launching."""
