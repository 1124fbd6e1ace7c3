"""What all commands share: options, output, interrupts and exit codes.

    command ─▶ context ─┬─ output (JSON lines, plain lines, live display)
                        └─ interrupt (Ctrl-C within a second; the end of a parent)

Read: declaring (a command as data), options (those that several commands have), context (made first), output (what is
shown), exit_codes (and what is said when a command fails), interrupt.

Called by every command. It knows no run, but for the warnings about one's settings in context.
"""
