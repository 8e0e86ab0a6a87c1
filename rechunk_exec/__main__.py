"""``python -m rechunk_exec``: the same program as ``rechunk-exec``."""

from __future__ import annotations

import sys

from rechunk_exec.cli import main

if __name__ == "__main__":
    sys.exit(main())
