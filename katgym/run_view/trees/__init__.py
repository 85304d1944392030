"""Groups of rollouts as trees, and as the data of their pages."""
