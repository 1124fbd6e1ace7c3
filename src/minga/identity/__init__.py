"""Who a peer is, what it may do, and the link by which others find a run.

    keys/ ─▶ access/ (orders, tokens, ledger) ─▶ links/ (links, grants, signed run specs)

Read: keys (Ed25519 keys and their files), access (runs for members: which peers may take part), links (one word that
holds all that a newcomer needs).

All of it is signatures and bytes: nothing here opens a connection. Called by network, training, authority and cli.
"""
