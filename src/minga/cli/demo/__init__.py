"""`minga demo`: an organiser and several trainers as processes on this machine, with a death and a late arrival.

    demo ─▶ stage (a process for each peer, JSON lines) ─▶ report: figures, bounds, plain words, pictures

Read: demo (entry), cut_model (the other play, for a model that is cut), stage (peers as child processes), report (what
came out).

Called by app. It sees the peers only by what they print.
"""
