"""What was read, by the token ids that were read. Pure policy: spans and checkpoints are opaque."""
