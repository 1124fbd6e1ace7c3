"""A run as one word: the link that newcomers get, and the signed run spec that it leads to.

    run id, organiser's key, entries, grant ─▶ encoding ─▶ links: minga1… ─▶ QR code, chat, web page
    the link ─▶ any peer of the run ─▶ signed_spec, checked against the link

Read: links (the word and its checksum), encoding (as few bytes as possible), reach (from where it leads into the
run), grant (what a link for members carries), signed_spec (a run spec with its organiser's signature).

Called by training (join, host), authority/client and cli. It opens no connection itself.
"""
