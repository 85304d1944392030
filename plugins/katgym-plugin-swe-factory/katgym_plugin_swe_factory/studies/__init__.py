"""Facts about a package that runs of its tests establish. See README.md."""
