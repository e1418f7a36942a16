"""A tiny random checkpoint of every supported family, as a local directory with tokenizer, processor and chat template.

``build_family("qwen3_vl", directory)`` writes one in about a second; nothing is downloaded. Weights are drawn wider
than usual so that greedy tokens vary with the picture. Sizes are small enough that a picture of a few hundred pixels
already has several tiles.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCABULARY = 512
_CORPUS = ["hello world, what is in this image? a red circle"] * 5
_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
}
_QWEN2 = {**_LLAMA, "model_type": "qwen2"}
_MISTRAL = {**_LLAMA, "model_type": "mistral", "sliding_window": None, "head_dim": 32}
_TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
_CLIP = {**_TOWER, "model_type": "clip_vision_model", "image_size": 56, "patch_size": 14}
_SIGLIP = {**_CLIP, "model_type": "siglip_vision_model", "vision_use_head": False}
_NARROW = {"gemma3": 0.02, "mistral3": 0.1}
"""Spread of token embeddings where wider ones drown the pictures: Gemma's are scaled up in front and used again behind."""
_PINPOINTS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]
_SQUARE = {"height": 56, "width": 56}

Parts = tuple[Any, Any, str]
"""Model, processor, and the text that stands for one picture in a prompt."""


def template(picture: str) -> str:
    """Return a chat template that takes strings and lists, pictures in every role, and begins a sequence itself."""
    return (
        "{{ bos_token if bos_token else '' }}{% for message in messages %}[{{ message['role'] }}] "
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}" + picture + "{% else %}{{ part['text'] }}{% endif %}"
        "{% endfor %}{% endif %}\n"
        "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
    )


def build_family(name: str, directory: str | Path, *, chat_template: bool = True) -> Path:
    """Write the checkpoint of one of :data:`FAMILIES` into ``directory`` and return it; a name fixes the weights."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    model, processor, picture = FAMILIES[name]()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "image_newline" in parameter_name or "mm_input_projection" in parameter_name:
                parameter.normal_(std=0.2)
            elif name in _NARROW and "embed_tokens" in parameter_name:
                parameter.normal_(std=_NARROW[name])
            elif parameter.ndim >= 2:
                parameter.normal_(std=0.5 if "embed" in parameter_name else parameter.shape[-1] ** -0.5)
    model.generation_config.eos_token_id = None
    if chat_template:
        processor.chat_template = template(picture)
    directory = Path(directory)
    model.eval().save_pretrained(directory)
    if name == "gemma3":
        _name_as_published(directory / "model.safetensors")
    processor.save_pretrained(directory)
    return directory


def _name_as_published(path: Path) -> None:
    """Give a SigLIP tower's weights the names of published checkpoints: transformers reads both and writes others, vLLM reads these."""
    from safetensors.torch import load_file, save_file

    tower = "vision_tower."
    named = {
        key.replace(tower, f"{tower}vision_model.", 1) if f"{tower}vision_model." not in key else key: value
        for key, value in load_file(path).items()
    }
    save_file(named, path, metadata={"format": "pt"})


def edit_json(path: Path, **changes: Any) -> None:
    """Change top-level keys of a JSON file in place."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _tokenizer(
    specials: Sequence[str],
    *,
    bos: str | None = None,
    eos: str = "<eos>",
    pad: str = "<pad>",
    named: dict[str, str] | None = None,
) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    first = [pad, eos, *([bos] if bos else [])]
    every = [*first, *(token for token in specials if token not in first)]
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=every, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    built.train_from_iterator(_CORPUS, trainer)
    if bos:
        built.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, built.token_to_id(bos))]
        )
    extra = {"extra_special_tokens": named} if named else {"additional_special_tokens": list(specials)}
    return PreTrainedTokenizerFast(
        tokenizer_object=built, eos_token=eos, pad_token=pad, **({"bos_token": bos} if bos else {}), **extra
    )


def _ids(tokenizer: Any, *tokens: str) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(token) for token in tokens]


def _qwen(kind: str) -> Parts:
    import transformers

    names = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer = _tokenizer(names, eos="<|im_end|>", pad="<|endoftext|>")
    ids = dict(zip(names, _ids(tokenizer, *names), strict=True))
    token_ids = {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }
    text = {**_LLAMA, "num_hidden_layers": 4, "bos_token_id": 0, "eos_token_id": ids["<|im_end|>"]}
    del text["model_type"]
    patch = 16 if kind == "qwen3_vl" else 14
    video: Any = transformers.Qwen2VLVideoProcessor
    if kind == "qwen2_vl":
        text["rope_scaling"] = {"type": "mrope", "rope_type": "default", "mrope_section": [4, 6, 6]}
        tower = {"depth": 3, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2, "patch_size": patch}
        config = transformers.Qwen2VLConfig(text_config=text, vision_config=tower, **token_ids)
        model = transformers.Qwen2VLForConditionalGeneration(config)
        made: Any = transformers.Qwen2VLProcessor
    else:
        tower = {"depth": 4, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 64}
        tower["patch_size"] = patch
        if kind == "qwen2_5_vl":
            text["rope_scaling"] = {"type": "mrope", "rope_type": "default", "mrope_section": [4, 6, 6]}
            tower |= {"fullatt_block_indexes": [1, 3], "window_size": 112}
            config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=tower, **token_ids)
            model = transformers.Qwen2_5_VLForConditionalGeneration(config)
            made = transformers.Qwen2_5_VLProcessor
        else:
            text |= {
                "head_dim": 32,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_interleaved": True,
                    "mrope_section": [8, 4, 4],
                },
            }
            tower |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1, 2]}
            config = transformers.Qwen3VLConfig(text_config=text, vision_config=tower, **token_ids)
            model = transformers.Qwen3VLForConditionalGeneration(config)
            made, video = transformers.Qwen3VLProcessor, transformers.Qwen3VLVideoProcessor
    image = transformers.Qwen2VLImageProcessor(
        min_pixels=16 * patch * patch,
        max_pixels=1200 * patch * patch,
        patch_size=patch,
        merge_size=2,
        temporal_patch_size=2,
    )
    processor = made(image_processor=image, tokenizer=tokenizer, video_processor=video(patch_size=patch))
    return model, processor, "<|vision_start|><|image_pad|><|vision_end|>"


def _llava() -> Parts:
    import transformers

    tokenizer = _tokenizer(["<image>"], bos="<s>", named={"image_token": "<image>"})
    config = transformers.LlavaConfig(
        vision_config=_CLIP,
        text_config=_LLAMA,
        image_token_index=_ids(tokenizer, "<image>")[0],
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        image_seq_length=16,
    )
    image = transformers.CLIPImageProcessor(size={"shortest_edge": 56}, crop_size=_SQUARE)
    processor = transformers.LlavaProcessor(
        image_processor=image,
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    return transformers.LlavaForConditionalGeneration(config), processor, "<image>"


def _llava_next() -> Parts:
    import transformers

    tokenizer = _tokenizer(["<image>"], bos="<s>", named={"image_token": "<image>"})
    config = transformers.LlavaNextConfig(
        vision_config=_CLIP,
        text_config=_LLAMA,
        image_token_index=_ids(tokenizer, "<image>")[0],
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        image_grid_pinpoints=_PINPOINTS,
        image_seq_length=16,
    )
    image = transformers.LlavaNextImageProcessor(
        size={"shortest_edge": 56}, crop_size=_SQUARE, image_grid_pinpoints=_PINPOINTS
    )
    processor = transformers.LlavaNextProcessor(
        image_processor=image,
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    return transformers.LlavaNextForConditionalGeneration(config), processor, "<image>"


def _llava_onevision() -> Parts:
    import transformers

    named = {"image_token": "<image>", "video_token": "<video>"}
    tokenizer = _tokenizer(["<image>", "<video>"], bos="<s>", named=named)
    picture, video = _ids(tokenizer, "<image>", "<video>")
    config = transformers.LlavaOnevisionConfig(
        vision_config=_SIGLIP,
        text_config=_QWEN2,
        image_token_index=picture,
        video_token_index=video,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_grid_pinpoints=_PINPOINTS,
        vision_aspect_ratio="anyres_max_2",
    )
    image = transformers.LlavaOnevisionImageProcessor(size=_SQUARE, image_grid_pinpoints=_PINPOINTS)
    processor = transformers.LlavaOnevisionProcessor(
        image_processor=image,
        tokenizer=tokenizer,
        video_processor=transformers.LlavaOnevisionVideoProcessor(size=_SQUARE),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_2",
    )
    return transformers.LlavaOnevisionForConditionalGeneration(config), processor, "<image>"


def _grid(kind: str) -> Parts:
    import transformers

    tags = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    names = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *tags]
    tokenizer = _tokenizer(names, bos="<s>")
    prefix = "Idefics3" if kind == "idefics3" else "SmolVLM"
    config = getattr(transformers, f"{prefix}Config")(
        vision_config={**_TOWER, "image_size": 56, "patch_size": 14},
        text_config=_LLAMA,
        image_token_id=_ids(tokenizer, "<image>")[0],
        scale_factor=2,
        pad_token_id=0,
    )
    image = getattr(transformers, f"{prefix}ImageProcessor")(
        size={"longest_edge": 56 * 4}, max_image_size={"longest_edge": 56}
    )
    parts = {"image_processor": image, "tokenizer": tokenizer, "image_seq_len": 4}
    if kind == "smolvlm":
        parts["video_processor"] = transformers.SmolVLMVideoProcessor(
            size={"longest_edge": 56}, max_image_size={"longest_edge": 56}, num_frames=4, fps=1
        )
    processor = getattr(transformers, f"{prefix}Processor")(**parts)
    return getattr(transformers, f"{prefix}ForConditionalGeneration")(config), processor, "<image>"


def _internvl() -> Parts:
    import transformers

    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    tokenizer = _tokenizer(list(named.values()), bos="<s>", named=named)
    config = transformers.InternVLConfig(
        vision_config={**_TOWER, "image_size": [56, 56], "patch_size": [14, 14]},
        text_config=_QWEN2,
        image_token_id=_ids(tokenizer, "<IMG_CONTEXT>")[0],
        image_seq_length=4,
        downsample_ratio=0.5,
    )
    image = transformers.GotOcr2ImageProcessor(size=_SQUARE, crop_to_patches=True, min_patches=1, max_patches=6)
    processor = transformers.InternVLProcessor(
        image_processor=image,
        tokenizer=tokenizer,
        video_processor=transformers.InternVLVideoProcessor(size=_SQUARE),
        image_seq_length=4,
    )
    return transformers.InternVLForConditionalGeneration(config), processor, "<IMG_CONTEXT>"


def _gemma3() -> Parts:
    import transformers

    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = _tokenizer(list(named.values()), bos="<bos>", named=named)
    # As every Gemma's has them; vLLM looks for them.
    tokenizer.add_tokens(["\n" * count for count in range(1, 5)])
    begin, end, soft = _ids(tokenizer, *named.values())
    text = {
        **{key: value for key, value in _LLAMA.items() if key != "model_type"},
        "num_hidden_layers": 4,
        "head_dim": 32,
        "sliding_window": 16,
        "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "pad_token_id": 0,
    }
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=_SIGLIP,
        mm_tokens_per_image=4,
        boi_token_index=begin,
        eoi_token_index=end,
        image_token_index=soft,
    )
    image = transformers.Gemma3ImageProcessor(size=_SQUARE)
    processor = transformers.Gemma3Processor(image_processor=image, tokenizer=tokenizer, image_seq_length=4)
    return transformers.Gemma3ForConditionalGeneration(config), processor, "<start_of_image>"


def _pixtral(kind: str) -> Parts:
    import transformers

    tokenizer = _tokenizer(["[IMG]", "[IMG_BREAK]", "[IMG_END]"], bos="<s>")
    settings = {
        "vision_config": {**_TOWER, "model_type": "pixtral", "image_size": 224, "patch_size": 14, "head_dim": 16},
        "text_config": _MISTRAL,
        "image_token_index": _ids(tokenizer, "[IMG]")[0],
        "vision_feature_layer": -1,
    }
    model: Any
    if kind == "mistral3":
        merge = 2
        model = transformers.Mistral3ForConditionalGeneration(
            transformers.Mistral3Config(**settings, spatial_merge_size=merge)
        )
    else:
        merge = 1
        config = transformers.LlavaConfig(**settings, vision_feature_select_strategy="full", image_seq_length=1)
        model = transformers.LlavaForConditionalGeneration(config)
    image = transformers.PixtralImageProcessor(size={"longest_edge": 224}, patch_size={"height": 14, "width": 14})
    processor = transformers.PixtralProcessor(
        image_processor=image, tokenizer=tokenizer, patch_size=14, spatial_merge_size=merge
    )
    return model, processor, "[IMG]"


FAMILIES: dict[str, Callable[[], Parts]] = {
    "qwen2_vl": lambda: _qwen("qwen2_vl"),
    "qwen2_5_vl": lambda: _qwen("qwen2_5_vl"),
    "qwen3_vl": lambda: _qwen("qwen3_vl"),
    "llava": _llava,
    "llava_next": _llava_next,
    "llava_onevision": _llava_onevision,
    "internvl": _internvl,
    "gemma3": _gemma3,
    "smolvlm": lambda: _grid("smolvlm"),
    "idefics3": lambda: _grid("idefics3"),
    "pixtral": lambda: _pixtral("pixtral"),
    "mistral3": lambda: _pixtral("mistral3"),
}
