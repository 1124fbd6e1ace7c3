"""What `minga host` says of its link, and who can use it.

    host ─▶ link_view (what it is good for: this machine, this network, the internet) ─▶ link_watch (what shows later)
              └─▶ landing_page (a page with the link, to be put anywhere)

Read: link_view (the first lines of `minga host`), link_watch (addresses and a dial-back that come to light later),
landing_page (a page with the link).

Called by taking_part.
"""
