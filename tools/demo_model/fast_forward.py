"""A batched forward pass over the library's own weights, for training on a CPU.

It computes what `Qwen2_5_VLForConditionalGeneration.forward` computes (a test holds the two together), but
takes whole batches of pictures of one grid, turns window attention into a mask, and takes the tree mask.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from packing import Batch
from transformers import Qwen2_5_VLForConditionalGeneration

Tensor = torch.Tensor


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), weight, eps)


def _bias(mask: Tensor) -> Tensor:
    """What to add to attention scores so that a query sees only the keys where `mask` is true.

    Made once for all layers, in the type the scores will have: making it is a third of the attention's cost.
    """
    dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -1e9)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Attention over (..., heads, tokens, width), with a bias to add to the scores (None: all see all).

    In bfloat16 it is written out, because on CPUs the backward pass of the fused bfloat16 attention is 2.6
    to 8 times slower at these sizes.
    """
    if q.dtype != torch.bfloat16:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    with torch.autocast("cpu", enabled=False):
        scores = torch.matmul(q * (q.shape[-1] ** -0.5), k.to(q.dtype).transpose(-1, -2))
        if bias is not None:
            scores = scores + bias
        return torch.matmul(torch.softmax(scores, -1), v.to(q.dtype))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos.to(x.dtype) + turned * sin.to(x.dtype)


@lru_cache(256)
def _patch_geometry(rows: int, columns: int, width: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rotary cosines and sines (patches, width) in merge-block order, and the window mask (None: one window)."""
    blocks = (rows, columns, 2, 2)
    h = torch.arange(rows * 2).view(rows, 2, 1, 1).permute(0, 2, 1, 3).expand(*blocks).reshape(-1)
    w = torch.arange(columns * 2).view(1, 1, columns, 2).permute(0, 2, 1, 3).expand(*blocks).reshape(-1)
    frequencies = 1.0 / (10000 ** (torch.arange(0, width // 2, 2).float() / (width // 2)))
    angles = torch.cat([h[:, None] * frequencies, w[:, None] * frequencies], -1)
    angles = torch.cat([angles, angles], -1)
    window = (h // 8) * 1000 + (w // 8)  # windows of 112 pixels are 8 patches wide
    mask = None if rows <= 4 and columns <= 4 else window[:, None] == window[None, :]
    return angles.cos(), angles.sin(), mask


def vision(tower: torch.nn.Module, pixels: Tensor, rows: int, columns: int) -> Tensor:
    """Pixels (N, 4 * rows * columns, 588) to image tokens (N, rows * columns, hidden of the language model)."""
    count, length, _ = pixels.shape
    heads = tower.config.num_heads
    width = tower.config.hidden_size // heads
    cos, sin, mask = _patch_geometry(rows, columns, width)
    windows = None if mask is None else _bias(mask)
    weight = tower.patch_embed.proj.weight.sum(2)  # both frames of a still picture are the same
    x = F.linear(pixels, weight.reshape(tower.config.hidden_size, -1)).float()
    for i, block in enumerate(tower.blocks):
        qkv = block.attn.qkv(_norm(x, block.norm1.weight, 1e-6)).view(count, length, 3, heads, width)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        bias = None if i in tower.config.fullatt_block_indexes else windows
        seen = _attend(_rotate(q, cos, sin), _rotate(k, cos, sin), v, bias)
        x = x + block.attn.proj(seen.transpose(1, 2).reshape(count, length, heads * width))
        h = _norm(x, block.norm2.weight, 1e-6)
        x = x + block.mlp.down_proj(F.silu(block.mlp.gate_proj(h)) * block.mlp.up_proj(h))
    merged = _norm(x, tower.merger.ln_q.weight, 1e-6).view(count, length // 4, -1)
    return tower.merger.mlp(merged)


def _text_angles(config, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary cosines and sines (B, 1, T, width) from positions (3, B, T): each axis has its own frequencies."""
    width = config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    frequencies = 1.0 / (rope["rope_theta"] ** (torch.arange(0, width, 2).float() / width))
    parts = (positions[..., None].float() * frequencies).split(rope["mrope_section"], -1)
    angles = torch.cat([part[i % 3] for i, part in enumerate(parts)], -1)
    angles = torch.cat([angles, angles], -1)[:, None]
    return angles.cos(), angles.sin()


def language(model: Qwen2_5_VLForConditionalGeneration, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """Embeddings (B, T, hidden), positions (3, B, T) and mask (B, 1, T, T) to last hidden states (B, T, hidden)."""
    text = model.model.language_model
    config = text.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    rows, length, hidden = x.shape
    width = hidden // heads
    cos, sin = _text_angles(config, positions)

    def shared(t: Tensor) -> Tensor:
        """Each key or value head serves heads / kv_heads query heads."""
        t = t[:, :, None].expand(rows, kv_heads, heads // kv_heads, length, width)
        return t.reshape(rows, heads, length, width)

    bias = _bias(mask)
    x = x.float()
    for layer in text.layers:
        attention, mlp = layer.self_attn, layer.mlp
        h = _norm(x, layer.input_layernorm.weight, config.rms_norm_eps)
        q = attention.q_proj(h).view(rows, length, heads, width).transpose(1, 2)
        k = attention.k_proj(h).view(rows, length, kv_heads, width).transpose(1, 2)
        v = attention.v_proj(h).view(rows, length, kv_heads, width).transpose(1, 2)
        seen = _attend(_rotate(q, cos, sin), shared(_rotate(k, cos, sin)), shared(v), bias)
        x = x + attention.o_proj(seen.transpose(1, 2).reshape(rows, length, hidden))
        h = _norm(x, layer.post_attention_layernorm.weight, config.rms_norm_eps)
        x = x + mlp.down_proj(F.silu(mlp.gate_proj(h)) * mlp.up_proj(h))
    return _norm(x, text.norm.weight, config.rms_norm_eps)


def hidden_states(
    model: Qwen2_5_VLForConditionalGeneration, batch: Batch, image_id: int
) -> tuple[Tensor, dict[int, Tensor]]:
    """Last hidden states (B, T, hidden), and for each grid its image tokens (N, rows * columns, hidden)."""
    embedded = model.model.language_model.embed_tokens(batch.ids).float()
    seen = {g: vision(model.model.visual, p, *batch.grids[g]) for g, p in batch.pixels.items()}
    if seen:
        flat = torch.cat([seen[g][i] for g, i in batch.picture_order]).float()
        at = (batch.ids == image_id)[..., None].expand_as(embedded)
        embedded = embedded.masked_scatter(at, flat)
    return language(model, embedded, batch.positions, batch.mask), seen


def target_logits(
    model: Qwen2_5_VLForConditionalGeneration, batch: Batch, image_id: int
) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """Float32 logits (targets, vocabulary) for the answer tokens alone, those tokens, and the image tokens."""
    hidden, seen = hidden_states(model, batch, image_id)
    chosen = batch.targets[:, 1:].reshape(-1).nonzero()[:, 0]
    before = hidden[:, :-1].reshape(-1, hidden.shape[-1])[chosen]
    return model.lm_head(before).float(), batch.ids[:, 1:].reshape(-1)[chosen], seen
