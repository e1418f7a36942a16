"""What is known of a vision-language model: its processor, token counts, placeholders, vision tower, language model, and versions.

With ``encoders`` and ``engines.embedded`` the only code that may import torch and transformers, and it does so only inside functions
that need them, so that a process without a model starts fast.
"""
