"""The organisers' signed orders, the tokens that peers show in runs for members, and what follows from both.

    organisers ── sign ──▶ orders ──▶ ledger ──▶ may this key take part now?
    a peer     ── shows ─▶ token  ──────┘

Read: orders (admit, bar, hand the role over, change settings while the run goes on), token (bound to a peer's key; and
address ranges banned for a time), ledger (all known orders and the rules, and orders before they are signed).

Called by access, identity/links, authority and the organiser's commands. Everything is checked offline, from
signatures alone; it knows nothing of connections.
"""
