"""Several clients: how they share a server's part of the model, and their own.

    split.variant ─▶ variants ─▶ server: TopCopies (splitfed), Blocks (vertical), Turns (round_robin), else OneTop
                        └──────▶ client: AveragedPart (splitfed), BlockHalf (vertical), TurnHalf (round_robin)

Read: variants (what `[split]` of a run spec stands for), splitfed (clients' parts, and the server's copies, averaged),
vertical (features of the same samples at several clients), round_robin (one client at a time, and its part goes on to
the next).

Used by client and serving.
"""
