"""Chance that nobody can load, and what is drawn from it.

    secrets of all members ─▶ coin ─▶ integers ┬─▶ validator_lottery: who checks whom
                                               └─▶ public_batch: which samples a peer trains on

Read: coin (commit, reveal, hash, and uniform integers that are the same on every machine), public_batch (seeds of
samples), validator_lottery (validators and targets).

Called by most folders of this room, by recipes, and by training/bridge. It sends nothing.
"""
