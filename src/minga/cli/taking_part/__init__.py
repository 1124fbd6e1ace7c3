"""Commands of people who take part: host, join, status, dashboard.

    host ─▶ link ─────────────────────────────────────┐
                                                      ├─▶ session ─▶ status
    join ─▶ availability, nearby, first_screen, login ┘

Read: join (`minga join`), availability (when the owner of the machine wants it to), nearby (runs of the local network,
without a link), first_screen (what a run costs, before anything is downloaded), login (the person at the machine); host
(`minga host`), link (what a host says of its link and finds out later, and what a joiner says when the host is gone);
session (what both do beside training: held-out figures, leaving by Ctrl-C); status (`minga status`, and how statuses
look everywhere); dashboard (`minga dashboard`, and what `minga host --dashboard` shares).

Called by app.
"""
