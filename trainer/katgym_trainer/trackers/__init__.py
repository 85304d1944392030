"""Where a run's metrics go besides its folder, one module each."""
