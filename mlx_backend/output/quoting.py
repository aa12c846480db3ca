"""Whether text stands in a code fence or in backticks, where marks are spoken about, not used."""

from __future__ import annotations

import re

_PARTS = re.compile(r"`+|\n|[^`\n]+")


class Quoting:
    """Follows Markdown's code as far as a mark's meaning depends on it: fences of backticks, and
    an odd number of runs of backticks since the line began."""

    def __init__(self) -> None:
        self._is_fenced = False
        self._is_fence_line = False  # a fence was opened in this line
        self._is_inline = False
        self._is_line_blank = True  # but for the run of backticks that is going on
        self._run = 0

    def push(self, text: str) -> None:
        if "`" not in text and "\n" not in text and not self._run:
            self._is_line_blank = self._is_line_blank and text.isspace()
            return
        for part in _PARTS.findall(text):
            if part[0] == "`":
                self._run += len(part)
            else:
                self._end_run()
                self._is_line_blank = part == "\n" or (self._is_line_blank and part.isspace())
                if part == "\n":
                    self._is_inline = self._is_fence_line = False

    @property
    def is_fenced(self) -> bool:
        """Whether a fence is open; it is until the line that closes it is over."""
        return self._is_fenced

    def is_open(self) -> bool:
        """Asked where something else than a backtick follows."""
        self._end_run()
        return self._is_fenced or self._is_inline

    def _end_run(self) -> None:
        if not self._run:
            return
        if self._is_fence_line:  # no fence, but code within the line
            self._is_fenced = self._is_fence_line = False
        elif self._is_line_blank and self._run >= 3:
            self._is_fenced = self._is_fence_line = not self._is_fenced
        else:
            self._is_inline = not self._is_inline
        self._is_line_blank = False
        self._run = 0
