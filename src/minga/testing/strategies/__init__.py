"""What every strategy must do, as checks of its class.

Read: trainer (a strategy at work on a model of a few numbers), contributions (what it sends, and what comes back),
states (what peers share of it, and what one peer alone has), faults (nothing, what is no number, what is interrupted),
suite (all of them).
"""
