"""Chance that nobody can load, and what is drawn from it.

    secrets of all members ─▶ coin ─▶ integers ┬─▶ validator_lottery: who checks whom
                                               └─▶ public_batch: which samples a peer trains on

Read: coin (commit, reveal, hash), integers (uniform, the same on every machine), public_batch (seeds of samples),
validator_lottery (validators and targets), detection_time (how long attackers last, for choosing the settings).

Called by step, rechecking, protocol and training/bridge. It sends nothing.
"""
