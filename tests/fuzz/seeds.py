#!/usr/bin/env python3
"""Writes the seeds of `corpus/`: small files of each kind, whole and broken.

    python3 seeds.py

The same input always gives the same files. What a fuzzer finds is added by hand, under a name
that says what it showed.
"""

import json
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def write(target, seeds):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in seeds.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def safetensors(header, data=b""):
    text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
    return len(text.encode()).to_bytes(8, "little") + text.encode() + data


def tensors(*members, metadata=None):
    """A whole file: (name, type, shape, bytes of an element)."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, dtype, shape, size in members:
        count = size
        for dimension in shape:
            count *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + count]}
        data += bytes(at % 251 for at in range(count))
    return safetensors(header, data)


def one(dtype="F32", shape=(1,), offsets=(0, 4), size=4, **more):
    member = {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}
    return safetensors({"decoder.conv_in.bias": member}, bytes(size))


whole = tensors(("decoder.conv_in.bias", "F32", [2], 4), ("decoder.conv_in.weight", "F16", [2, 1, 1, 1], 2))
open_clip = "cond_stage_model.model.transformer.resblocks.0."
types = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I16": 2,
         "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}

write("safetensors", {
    "whole": whole,
    "types": tensors(*((f"decoder.{name}.x", name, [3], size) for name, size in types.items()),
                     ("decoder.conv_in.bias", "F32", [1], 4)),
    "original": tensors(
        ("model.diffusion_model.input_blocks.0.0.bias", "F16", [1], 2),
        ("model.diffusion_model.input_blocks.1.0.in_layers.0.bias", "F16", [1], 2),
        ("model.diffusion_model.input_blocks.1.1.proj_in.weight", "F16", [1, 1], 2),
        ("model.diffusion_model.input_blocks.2.0.op.bias", "F16", [1], 2),
        ("model.diffusion_model.middle_block.1.transformer_blocks.0.norm1.bias", "F16", [1], 2),
        ("model.diffusion_model.output_blocks.0.1.conv.bias", "F16", [1], 2),
        ("first_stage_model.decoder.mid.attn_1.q.weight", "F16", [1, 1, 1, 1], 2),
        ("first_stage_model.decoder.up.1.block.0.conv1.bias", "F16", [1], 2),
        (open_clip + "attn.in_proj_weight", "F16", [6, 2], 2),
        ("cond_stage_model.model.text_projection", "F16", [2, 3], 2),
        ("model_ema.decay", "F32", [], 4), ("betas", "F32", [2], 4)),
    "bundle": tensors(
        ("unet.conv_in.bias", "F16", [1], 2), ("vae.decoder.conv_in.bias", "F16", [1], 2),
        ("text_encoder.text_model.final_layer_norm.bias", "F16", [1], 2), ("taesd.decoder.layers.0.weight", "F16", [1], 2),
        metadata={"format": "scumble-bundle", "unet.config": "{}", "scheduler.config": '{"a":1}', "license": "MIT",
                  "tokenizer.vocab": "{}", "tokenizer.merges": ""}),
    "taesd": tensors(("0.weight", "F32", [1], 4), ("3.conv.0.weight", "F32", [1], 4)),
    "not_three_parts": tensors((open_clip + "attn.in_proj_bias", "F32", [4], 4)),
    "empty": b"", "empty_object": safetensors("{}"), "list": safetensors("[]"), "truncated": whole[:-1],
    "truncated_header": whole[:30], "huge_header": b"\xff" * 8 + b"{}", "backwards": one(offsets=(4, 0)),
    "past_the_end": one(offsets=(0, 8), shape=(2,)), "trailing": one(size=5), "leading": one(offsets=(4, 8), size=8),
    "far": one(offsets=(2**64 - 5, 2**64 - 1)), "overflow": one(shape=(2**32, 2**32, 4)), "zero_overflow": one(shape=(0, 2**63, 4)),
    "disagrees": one(shape=(3,)), "negative": one(shape=(-1,)), "fraction": one(shape=(1.5,)), "rank": one(shape=(1,) * 9),
    "unknown_type": one(dtype="F4"), "more_members": one(strides=[1]), "nested": safetensors('{"t":' + "[" * 300),
    "twice": safetensors('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
    "overlap": safetensors({name: {"dtype": "U8", "shape": [4], "data_offsets": [at, at + 4]} for name, at in (("a", 0), ("b", 2))}, bytes(6)),
    "dots": tensors(("unet." + "." * 300, "U8", [0], 1)), "control_characters": tensors(("a\x1b[2J", "U8", [0], 1)),
    "pickle": b"\x80\x02}q\x00.", "zip": b"PK\x03\x04" + bytes(16), "gguf": b"GGUF\x03" + bytes(11),
})

write("index_json", {
    "whole": '{"metadata":{"total_size":8},"weight_map":{"a":"m-1.safetensors","b":"sub/m-2.safetensors"}}',
    "outside": '{"weight_map":{"a":"../m"}}', "absolute": '{"weight_map":{"a":"/m"}}', "inner_dots": '{"weight_map":{"a":"a/../../m"}}',
    "backslash": '{"weight_map":{"a":"..\\\\m"}}', "zero": '{"weight_map":{"a":"\\u0000"}}', "empty_name": '{"weight_map":{"a":""}}',
    "empty": "{}", "no_object": "[]", "wrong": '{"weight_map":{"a":1}}', "twice": '{"weight_map":{"a":"x","a":"y"}}',
    "nested": '{"x":' + "[" * 300, "open": '{"weight_map":{"a"',
})

write("model_index", {
    "whole": '{"_class_name":"StableDiffusionPipeline","_diffusers_version":"0.30.0","unet":["diffusers","UNet2DConditionModel"],'
             '"safety_checker":[null,null],"requires_safety_checker":true}',
    "flux": '{"_class_name":"FluxPipeline","transformer":["diffusers","FluxTransformer2DModel"]}',
    "wrong": '{"_class_name":1,"unet":{"a":[]}}', "odd_lists": '{"unet":[],"vae":[1,2],"x":["a","b","c"]}', "empty": "", "list": "[{}]",
})

write("config", {
    "unet": '{"_class_name":"UNet2DConditionModel","attention_head_dim":[5,10,20],"in_channels":4,"act_fn":"silu","x":null}',
    "vae": '{"scaling_factor":0.18215,"shift_factor":null,"latent_channels":4,"block_out_channels":[128,256],"down_block_types":["a"]}',
    "wrong": '{"attention_head_dim":"8","in_channels":-4,"scaling_factor":1e999,"a":[1,"b"],"c":18446744073709551616}',
    "large": '{"a":1e308,"b":18446744073709551615}', "nested": '{"a":' + "[" * 300, "list": "[]", "empty": "",
})

scheduler = {"_class_name": "PNDMScheduler", "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
             "num_train_timesteps": 1000, "prediction_type": "v_prediction", "steps_offset": 1, "set_alpha_to_one": False,
             "timestep_spacing": "leading", "skip_prk_steps": True, "rescale_betas_zero_snr": True}
write("scheduler_config", {
    "whole": json.dumps(scheduler), "huge": json.dumps(scheduler | {"num_train_timesteps": 2**63}),
    "zero": json.dumps(scheduler | {"num_train_timesteps": 0}), "wrong": json.dumps(scheduler | {"beta_start": "x", "steps_offset": -1}),
    "backwards": json.dumps(scheduler | {"beta_start": 2.0, "beta_end": -1.0}), "empty": "{}",
    "dpm": json.dumps({"_class_name": "DPMSolverMultistepScheduler", "solver_order": 2, "use_karras_sigmas": True, "algorithm_type": "sde-dpmsolver++"}),
})

tokenizer = {"model": {"type": "BPE", "vocab": {"a": 0, "b</w>": 1, "ab</w>": 2, "<|startoftext|>": 3, "<|endoftext|>": 4}, "merges": ["a b</w>"]},
             "added_tokens": [{"id": 3, "content": "<|startoftext|>", "special": True}, {"id": 4, "content": "<|endoftext|>", "special": True}]}
tokenizers = {
    "whole": json.dumps(tokenizer), "pairs": json.dumps(tokenizer | {"model": tokenizer["model"] | {"merges": [["a", "b</w>"]]}}),
    "odd_merges": json.dumps(tokenizer | {"model": tokenizer["model"] | {"merges": [["a"], 3, "a"]}}),
    "odd_ids": json.dumps(tokenizer | {"model": tokenizer["model"] | {"vocab": {"a": -1, "b": 1.5, "c": 2**63}}}),
    "odd_added": json.dumps(tokenizer | {"added_tokens": [{"id": "x"}, 3, {"content": ""}]}),
    "no_vocabulary": '{"model":{}}', "wordpiece": '{"model":{"type":"WordPiece","vocab":{},"merges":[]}}', "empty": "",
}
write("tokenizer_json", tokenizers)
write("tokenizer", tokenizers)

write("prompt", {
    "plain": "a mossy red brick wall", "weights": "(red:1.3) [blue] ((green)) (a (b:0.5) c:1.1)", "escapes": r"\(not\) \[this\] \\",
    "open": "((((a", "closed": "a))))]]", "no_number": "(a:) (b:x) (c:1.2.3) (:1)", "huge": "(a:1e999) (b:-1e999) (c:nan) (d:inf)",
    "deep": "(" * 500 + "a" + ")" * 500, "unicode": "(ｗａｌｌ：１．２) (é̂:1.2) 🧱\u202e [\u0000]", "break": "a BREAK b", "empty": "",
})
