"""The numbers of a run as plain data of bounded size: what the pages and the API show.

    history entries ─▶ run_model ─▶ series, contributions ─▶ documents ─▶ JSON
    looks at the run ──────┘

Read: series (curves and lists of bounded length, and the speed of the swarm, divided among its peers), contributions
(what each peer has given), run_model (folds history and looks), documents (the answers of the API).

Called by recorder and server, on one thread. Nothing here knows of HTTP.
"""
