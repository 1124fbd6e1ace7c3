"""How languages are written: where sentences end, and one spelling for what looks the same.

    language of a text ─▶ by_language ─┬─▶ sentences (most languages)
                                       └─▶ bengali (spelling and sentences)

Read: by_language (entry), sentences, bengali. Another language is another file, and a line in by_language.

Called by text and mixture. It knows text and nothing of tokens.
"""
