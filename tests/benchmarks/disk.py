"""What the disk cache costs and withstands: `python -m tests.benchmarks.disk PART`.

* `restore`: 20,000 tokens from the page cache into a row, beside `mx.load` of one file of that
  size.
* `index`: what it costs to know what is on disk, with as many files as there may be.
* `loop`: bytes written in a tool loop of 40 turns, beside the bytes of its distinct blocks.
* `kill`: a process is killed while it writes, again and again; what the next one finds is checked.

Prints numbers and the project's targets for them; `kill` ends with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

PARTS = ("restore", "index", "loop", "kill")
"""Each a module beside this one, `disk_…`, with `add_arguments` and `main`: imported when asked
for, since each sets up its process in its own way."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], add_help=False)
    parser.add_argument("part", choices=PARTS)
    chosen, rest = parser.parse_known_args()
    part = import_module(f"tests.benchmarks.disk_{chosen.part}")
    of_part = argparse.ArgumentParser(
        prog=f"python -m tests.benchmarks.disk {chosen.part}",
        description=part.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    part.add_arguments(of_part)
    return int(part.main(of_part.parse_args(rest)) or 0)


if __name__ == "__main__":
    sys.exit(main())
