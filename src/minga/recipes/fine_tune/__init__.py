"""The recipe `fine-tune`: adapters of an open model learn from instructions and conversations.

    base (a folder, the hub, or a small one) ─▶ base/*.safetensors ─▶ the model, which is frozen ─┐
    conversations ─▶ chats (tokens, and which of them carry loss) ─▶ samples ─────────────────────┴▶ adapters ─▶ sent

Read: settings, base (which model is tuned), chats (from rows to tokens), samples (from tokens to batches), adapters
(LoRA by `peft`), recipe.
"""
