"""A small byte-level BPE vocabulary in the format of CLIP: `vocab.json` and `merges.txt`.

The order is CLIP's: 256 byte symbols, the same with `</w>`, one token a merge, then
`<|startoftext|>` and `<|endoftext|>`. "!" is id 0, as in the real vocabulary.
"""

import json
from collections import Counter
from pathlib import Path

TEXT = """
a photo of a red brick wall, an old castle wall covered in moss and ivy, wet stone stairs in the rain
green forest, rusty metal plate with rivets, painted wooden planks, marble floor tiles, seamless texture
highly detailed, sharp focus, blurry, low quality, dark, bright, blue sky over the snow and the sand
a knight standing on the terrain, mossy red brick wall, lava and water, the cat is in the garden with an apple
worn leather, cracked concrete, gold and silver, a small house by the river, soft light, ornament, pattern
"""


def byte_symbols():
    """The 256 printable characters that stand for bytes, in the order of CLIP's vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]


def train(merges):
    """`merges` pairs learnt from TEXT by frequency; ties go to the alphabetically first pair."""
    words = Counter(word for word in TEXT.replace(",", " ").split())
    spelled = {word: [*word[:-1], word[-1] + "</w>"] for word in words}
    learnt = []
    while len(learnt) < merges:
        pairs = Counter()
        for word, count in words.items():
            for pair in zip(spelled[word], spelled[word][1:]):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        learnt.append(best)
        for symbols in spelled.values():
            at = 0
            while at < len(symbols) - 1:
                if (symbols[at], symbols[at + 1]) == best:
                    symbols[at : at + 2] = ["".join(best)]
                at += 1
    return learnt


def write(folder, merges=90, pad="<|endoftext|>"):
    """Write the tokenizer files of a diffusers folder; gives the number of tokens (514 + merges)."""
    symbols, pairs = byte_symbols(), train(merges)
    tokens = symbols + [s + "</w>" for s in symbols] + ["".join(p) for p in pairs]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    save_files(folder, {token: index for index, token in enumerate(tokens)}, pairs, pad)
    return len(tokens)


def save_files(folder, vocabulary, pairs, pad):
    """`vocab.json`, `merges.txt`, `tokenizer_config.json`, `special_tokens_map.json` as the releases have them."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    special = lambda text: {"__type": "AddedToken", "content": text, "lstrip": False, "normalized": True,
                            "rstrip": False, "single_word": False}
    config = {"add_prefix_space": False, "bos_token": special("<|startoftext|>"), "do_lower_case": True,
              "eos_token": special("<|endoftext|>"), "errors": "replace", "model_max_length": 77,
              "pad_token": pad, "tokenizer_class": "CLIPTokenizer", "unk_token": special("<|endoftext|>")}
    names = {key: {k: v for k, v in config[key].items() if k != "__type"}
             for key in ("bos_token", "eos_token", "unk_token")}
    texts = {"vocab.json": json.dumps(vocabulary, ensure_ascii=False),
             "merges.txt": "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in pairs),
             "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
             "special_tokens_map.json": json.dumps(names | {"pad_token": pad}, indent=2) + "\n"}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
