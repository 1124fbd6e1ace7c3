"""The organisers' orders as one peer follows them while the run goes on: who may take part, by which settings.

    organisers' orders ─▶ standing_orders ─▶ admission (authorizer of node and board) ─▶ access_files: disconnects,
                                                                                         and keeps orders on disk

Read: admission (which peers are admitted, and how a peer finds the run by the entries of its link), standing_orders
(orders reach every member, and change its settings round by round), access_files (what is kept on disk, and who is
disconnected at the end of a step because its access ended).

Called by training and cli. The rules are in identity/access; it knows no steps but one question: is one under way?
"""
