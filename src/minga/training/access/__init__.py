"""Who may take part in a run for members, as one peer knows it while the run goes on.

    organisers' orders ─▶ order_gossip ─▶ admission (authorizer of node and board) ─▶ access_watch: disconnects
                                                └──────── access_files: kept on disk ────────┘

Read: admission (which peers are admitted), order_gossip (orders reach every member), access_watch (disconnects a peer
whose access ended, at the end of a step), access_files (what is kept).

Called by training/session and training/own_access. The rules are in identity/access; it knows no steps but one
question: is one under way?
"""
