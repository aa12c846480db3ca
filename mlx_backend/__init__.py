"""Everything that touches mlx or mlx-lm: models, rows, snapshots, batches, prompts, text out.

What crosses to the daemon is in three files that import no mlx: `interface` (what a backend can
do), `messages` (the values passed) and `errors` (what can go wrong).
"""
