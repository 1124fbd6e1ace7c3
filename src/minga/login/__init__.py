"""Logging in at an authority, the web service that admits people to a run for members (`minga.authority`).

    GET  /v1/offer     -> LoginOffer   the run, in which ways people log in here, a nonce
    POST /v1/device    -> DeviceCode   begins a login in the browser (RFC 8628)
    POST /v1/token     SignedRequest   -> TokenAnswer: Issued, or Pending while the browser is waited for
    any of them        -> AuthorityRefusal, with a status from 400 on

A request is signed by the peer's key and holds the run's id and a nonce that counts once and for a minute. So only the
owner of the key gets its token, and a recorded request is worth nothing. No clock matters for that. Before a token
expires its peer gets the next one by its key alone, without another login, as long as its person is on the list, and
for some weeks at most.

Read: messages (what both sides say, as JSON), http (requests whose answers are bounded), client (asks, and again),
credentials (by key if that is enough, else by the person).

Called by training/own_access and the doctor; the authority shares messages and http.
"""
