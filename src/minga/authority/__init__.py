"""The authority: a small web service that admits people who log in to a run for members.

    app ─▶ service (ASGI) ─▶ issuer ─▶ providers (codes; allow_list) ─▶ roster ─▶ token
                                                 no: refusals

Theory of operation. An organiser makes an invitation for many peers (`minga admit LINK --uses 500`) and gives it to
the operator of the authority. The authority keeps the invitation's secret and signs with it: for the key of a peer,
under the name of the person, until a date that is hours away (`minga.identity.access.token.Login`). So no
organiser's key lies on a web server, members verify everything offline, and a stolen invitation can admit at most
as many peers as it is for, until the organisers bar it.

It is a program of its own: in minga only the command `minga authority` imports it. Peers that log in do so by
`minga.login`.

Read: app (entry: files, web server), service (bounds on requests), issuer (decides and signs), providers (identify
people), allow_list (the people that the authority admits), codes (secret codes), roster (the peers of each person),
refusals (why there is no token).
"""
