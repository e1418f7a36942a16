"""The model's configuration, its tokenizer, its image-processor file and its random start.

A Qwen2.5-VL of 3 million parameters: any server or library that knows the architecture can load it.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import questions
import torch
from scenes import CELL, MAX_TOKENS, MIN_TOKENS, make_scene
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

VOCABULARY = 1024
SPECIAL_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>",
]  # fmt: skip
# No default system message; pictures and text keep the order in which the request has them.
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{m['role']}}\n"
    "{% if m['content'] is string %}{{m['content']}}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] in ('image','image_url') or 'image' in c or 'image_url' in c %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] in ('video','video_url') %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{c['text']}}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer_corpus() -> list[str]:
    """Text to learn the vocabulary from: every question type equally often.

    It must not depend on `stages.STAGES`: the vocabulary is part of the model's format, and a change in
    how often training asks what must not change it (weights and vocabulary would no longer fit together).
    """
    rng = random.Random(1)
    corpus: list[str] = []
    while len(corpus) < 24_000:
        for kind in questions.ALL_TYPES:
            count = 0 if kind == "text" else 2 if kind in questions.TWO_PICTURES else 1
            scenes = [make_scene(rng, 224, 224) for _ in range(count)]
            question = questions.ask(rng, kind, scenes)
            if question:
                corpus += [questions.vary(rng, question.text), question.answer]
    return corpus + ([*questions.SYSTEM_PROMPTS, "user", "assistant", "system"]) * 30


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of 1024 tokens, in which nearly every word of the corpus is one token."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=3,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(tokenizer_corpus(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL_TOKENS[1:],
    )
    tokenizer.model_max_length = 4096
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def configuration(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLConfig:
    """Vision tower 1.2 M and language model 1.8 M parameters.

    `rope_theta` is 20, not 10,000 or more: contexts are a few hundred tokens and heads only 32 wide, and a
    larger theta would leave the row and column axes (7 frequencies each) frequencies too low to tell
    neighbouring image tokens apart.
    """
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    rope = {"type": "mrope", "rope_type": "default", "mrope_section": [2, 7, 7], "rope_theta": 20.0}
    text = {
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": (len(tokenizer) + 63) // 64 * 64,
        "max_position_embeddings": 4096,
        "rope_parameters": rope,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": 4,
        "hidden_size": 128,
        "intermediate_size": 288,
        "num_heads": 4,
        "out_hidden_size": 192,
        "fullatt_block_indexes": [1, 3],
        "window_size": 112,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def random_model(config: Qwen2_5_VLConfig, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """A float32 model whose matrices start at 1/sqrt(fan-in), half that where they write to the residual.

    The library's standard deviation of 0.02 is small for widths of 128 to 192 and slows the start.
    """
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(config).float()
    residual = ("o_proj", "down_proj", "attn.proj")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2 and "embed_tokens" not in name:
                scale = 0.5 if any(part in name for part in residual) else 1.0
                weight.normal_(0, scale * weight[0].numel() ** -0.5)
    return model


def write_processor(out: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write tokenizer, chat template and image-processor settings: any upload becomes 16 to 144 image tokens."""
    tokenizer.save_pretrained(out)
    settings = {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "image_processor_type": "Qwen2VLImageProcessor",
        "merge_size": 2,
        "patch_size": 14,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": CELL * CELL * MAX_TOKENS, "shortest_edge": CELL * CELL * MIN_TOKENS},
        "temporal_patch_size": 2,
    }
    (out / "preprocessor_config.json").write_text(json.dumps(settings, indent=1) + "\n")
