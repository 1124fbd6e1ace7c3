"""The recipe `fine-tune`: adapters of an open model learn from instructions and conversations.

    model.init_from ─▶ initial.safetensors ─▶ the base, which is frozen ─┐
    conversations ─▶ chats (tokens, and which of them carry loss) ───────┴▶ adapters ─▶ what is trained and sent

Read: settings, chats (from files to tokens), adapters (LoRA by `peft`), recipe.
"""
