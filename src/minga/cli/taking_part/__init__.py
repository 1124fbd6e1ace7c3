"""Commands of people who take part: host, join, status, dashboard.

    host ─▶ prepared_files ─────┐
    join ─▶ login, first_screen ┴─▶ status_view, held_out ─▶ leaving          host --dashboard ─▶ dashboard

Read: host (`minga host`), link_view (what it says of its link, and finds out of it later; what a joiner says when the
host is gone), nearby (runs of the local network, without a link), join (`minga join`), pause (from another
terminal), first_screen (what a run costs, before anything is downloaded), prepared_files (prepared once for equal
settings), login (the person at the machine), held_out (held-out figures beside training), leaving (by Ctrl-C, a secure
run between two steps, a host with a last checkpoint), status (`minga status`), status_view (how statuses look),
dashboard (`minga dashboard`, and what `minga host --dashboard` shares).

Called by app.
"""
