"""`python -m minga`: the same as the command `minga`."""

from __future__ import annotations

from minga.cli import main

if __name__ == "__main__":
    main()
