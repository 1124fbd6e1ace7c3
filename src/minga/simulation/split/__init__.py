"""Runs with a model that is cut: what their peers train and do, and whether each batch was applied exactly once.

    parts (bottom, top, head; batches have numbers) ─▶ life (of a server, of a client) ─▶ entries ─▶ tally

Read: parts, life (the code of production between them), tally (worked out from the entries of a log alone).

Called by runner and timeline.
"""
