"""Token ids of one answer to thoughts, text and tool calls, piece by piece. No mlx, no tokenizer.

ids → characters and marks (`plain`, `marked`) → a tape that is read once (`tape`) → thoughts, text
and calls (`splitting`, with the family's `call_format`; `harmony`) → stop strings and trimming
(`answer_pieces`) → `messages.Piece`. `formats` finds the family from a model's template and tokens.
"""

from mlx_backend.output.plain import ByteDecoder, StopStrings, TextDecoder, TextOutput

__all__ = ["ByteDecoder", "StopStrings", "TextDecoder", "TextOutput"]
