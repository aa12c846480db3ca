"""What was read, as files: their format, their folder, their index. No array library here."""
