"""Everything that is not mlx: the engine, the prefix cache, the HTTP door, the command line.

Importable without mlx installed. Only `daemon.models` imports the backend's implementation, and
does so inside a function, because importing mlx-lm costs seconds.
"""

__version__ = "0.1.0"
