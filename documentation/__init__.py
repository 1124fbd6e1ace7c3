"""The documentation site: reference pages from the code, and what the site builder needs to read our Markdown.

    run_spec, python_api ───────────▶ __main__ ─▶ docs/reference/*.md ─┐
    commands, events, combinations ─▶ __main__ ─▶ docs/*.md ───────────┼─▶ zensical (mkdocs.yml) ─▶ site/
    docs/*.md, which people write ─────────────────── code_fences ─────┘

`make docs` writes the pages and builds the site; tests hold the pages to the code. Read `__main__` first.
"""
