"""A run as one word: the link that newcomers get, and the signed run spec that it leads to.

    run id, organiser's key, entries, grant ─▶ links: minga1… ─▶ QR code, chat, web page
    the link ─▶ any peer of the run ─▶ signed_spec, checked against the link

Read: links (the word and its checksum, its body in as few bytes as possible, the grant that a link for members carries,
and from where a link leads into the run), signed_spec (a run spec with its organiser's signature).

Called by training (join, host), authority and cli. It opens no connection itself.
"""
