"""The web service: logins, tokens for people on the list, and revocation.

    app ─▶ service (ASGI) ─▶ issuer ─▶ providers (oauth, codes; allow_list) ─▶ roster ─▶ token
     └─▶ revocation: people taken off the list                 no: refusals

Read: app (entry: files, web server, watch over the list), service (bounds on requests), issuer (decides and signs),
providers (identify people), allow_list (the people that the authority admits), codes (secret codes), oauth (logins in
the browser), roster (the peers of each person), refusals (why there is no token), revocation (tokens of people who were
taken off the list).

Called by `minga authority`. It knows an invitation's secret and no organiser's key, and nothing of the swarm.
"""
