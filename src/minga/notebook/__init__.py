"""Take part in a run, or host one, from a notebook: a `minga` command in the background, its progress in the cell.

    background (join, host) ─▶ command (a process, and the events that it prints) ─▶ screen (the output of the cell)
    template.md ─▶ notebook_file (what `minga new --notebook` writes)

The command is a process of its own, so a restart of the kernel leaves no half-trained model in its memory, and Stop
ends one step in order. It ends with the kernel. `minga demo` starts its peers by the same class. Reading order:
command, screen, background, notebook_file.

    from minga import notebook

    mine = notebook.join("minga1…")
    mine.stop()
"""

from minga.notebook.background import Background, host, join

__all__ = ["Background", "host", "join"]
