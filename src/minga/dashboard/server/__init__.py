"""The web server of the dashboard: pages, API, events and metrics, on a thread of its own.

    request ─▶ guard (Host, token, headers) ────────┬─▶ pages (files of this package)
                                                    ├─▶ answers (the API) ◀── live_run
                                                    ├─▶ join_answers (page for newcomers, notebook, wheel)
                                                    ├─▶ live_feed (Server-Sent Events)
                                                    └─▶ metrics (Prometheus)

Read: guard (who may ask), answers (the API), join_answers (for newcomers), live_feed (what changes, to all viewers),
pages (HTML, style, scripts), metrics, web_server (what is where; uvicorn on its thread, with bounds of what strangers
may hold open).
"""
