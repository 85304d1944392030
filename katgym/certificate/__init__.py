"""Certificate of an env: measured checks, floors, and what they name."""
