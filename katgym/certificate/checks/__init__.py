"""The checks of a certificate, one family a module."""
