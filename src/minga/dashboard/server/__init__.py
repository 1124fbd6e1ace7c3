"""The web server of the dashboard: pages, API, events and metrics, on a thread of its own.

    request ─▶ guard (Host, token, headers) ────────┬─▶ files of the pages
                                                    ├─▶ answers (the API, what changes) ◀── live_run
                                                    ├─▶ join_answers (page for newcomers, notebook, wheel)
                                                    └─▶ metrics (Prometheus)

Read: guard (who may ask), answers (the API; what changes, to all viewers), join_answers (for newcomers), metrics,
web_server (what is where; HTML, style and scripts; uvicorn on its thread).
"""
