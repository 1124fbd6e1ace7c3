"""The organisers' orders as one peer follows them while the run goes on: who may take part, by which settings.

    organisers' orders ─▶ order_gossip ─▶ admission (authorizer of node and board) ─▶ access_watch: disconnects
                                                └──────── access_files: kept on disk ────────┘

Read: entrance (finds the run by the entries of its link), admission (which peers are admitted), order_gossip (orders
reach every member), access_watch (disconnects a peer whose access ended, at the end of a step), access_files (what is
kept); standing_orders (the settings that organisers changed, round by round), amended (puts them into effect on this
peer).

Called by training/session and training/own_access. The rules are in identity/access; it knows no steps but one
question: is one under way?
"""
