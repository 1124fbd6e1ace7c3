"""What all commands share: options, output, interrupts and exit codes.

    command ─▶ context ─┬─ output (JSON lines, plain lines, live display)
                        ├─ interrupt (Ctrl-C within a second)
                        └─ parent_watch (ends with its parent)

Read: declaring (a command as data), options (those that several commands have), context (made first), output (what is
shown), plain_characters (where the encoding lacks some), exit_codes (and what is said when a command fails), interrupt,
cautions (warnings about the settings of a run), last_checkpoint (what a host does with its last second), parent_watch.

Called by every command. Only cautions and last_checkpoint know a run.
"""
