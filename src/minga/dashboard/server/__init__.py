"""The web server of the dashboard: pages, API, events and metrics, on a thread of its own.

    request ─▶ guard (Host, token, headers) ─▶ app ─┬─▶ pages (files of this package)
                                                    ├─▶ answers (the API) ◀── live_run
                                                    ├─▶ join_answers (page for newcomers, notebook, wheel)
                                                    ├─▶ live_feed (Server-Sent Events)
                                                    ├─▶ metrics (Prometheus)
                                                    └─▶ orders (the organiser's)

Read: guard (who may ask), app (what is where), answers (the API), join_answers (for newcomers), seldom (what has to be
asked of the peer), live_feed (what changes, to all viewers), pages (HTML, style, scripts), metrics, orders (pause,
resume, ban, amend), connection (bounds of what strangers may hold open), web_server (uvicorn on its thread).
"""
