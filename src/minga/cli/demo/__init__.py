"""`minga demo`: an organiser and several trainers as processes on this machine, with a death and a late arrival.

    demo ─▶ child (one process each, JSON lines) ─▶ report: figures, bounds, plain words ─▶ results, picture

Read: demo (entry), child (a peer as a child process), report (what came out), results (plot, folder of
the run, samples), picture (a terminal as SVG).

Called by app. It sees the peers only by what they print.
"""
