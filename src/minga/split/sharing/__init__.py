"""Several clients: how they share a server's part of the model, and their own.

    split.variant ─▶ choices ─▶ server: top_copies | blocks | turns       (one_top for the others)
                        └─────▶ client: averaged_part | block_half | turn_half ◀─ handed_part

Read: choices (which variant has what), averaged_part and top_copies (SplitFed: clients' parts, and the server's copies,
averaged), blocks and block_half (a vertical cut: features of the same samples at several clients), turns, turn_half and
handed_part (round-robin: one client at a time, and its part goes on to the next).

Used by client and serving.
"""
