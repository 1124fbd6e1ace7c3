"""Getting a token from an authority, and keeping it fresh while taking part.

    link with an authority ─▶ join ─▶ login (key, else person) ─▶ client ─▶ authority
                               └─▶ renewal: the next token, long before this one ends

Read: join (entry), login (by key if that is enough, else by the person), client (asks, and again), renewal (while
the peer takes part).

Called by programs and `minga join`.
"""
