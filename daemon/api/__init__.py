"""The HTTP door: wire formats are pure translations, one endpoint does the I/O for all of them."""
