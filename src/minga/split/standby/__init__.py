"""A server that dies is followed by another: checkpoints, and who serves.

    serving peer ─▶ checkpoint ═ transfer, every `split.standby_every` batches ═▶ standby ─▶ succession ─▶ it serves

Read: checkpoint (the top, its optimizer, and which batches of each client it has seen), transfer (from peer to peer),
succession (who serves: the failure detector of the board says who is alive, the records who comes first).

Used by serving.
"""
