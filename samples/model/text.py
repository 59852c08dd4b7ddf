"""The small CLIP text encoder and its own vocabulary, learnt from the captions."""

import json
import re
from collections import Counter

import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import CLIPTextConfig, CLIPTextModel

START, END = "<|startoftext|>", "<|endoftext|>"
LENGTH = 77
WIDTH = 128
MERGES = 900
# What CLIP splits text by: contractions, letters, single digits, the rest.
PIECES = r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""


def byte_symbols():
    """The printable character that stands for each byte, in the order that CLIP's vocabulary has."""
    order = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shown = {b: chr(b) for b in order}
    for b in range(256):
        if b not in shown:
            shown[b] = chr(256 + len(shown) - 188)
            order.append(b)
    return [shown[b] for b in order]


def learn_merges(captions, count=MERGES):
    """The byte pairs to merge, most frequent first, until every caption word is one symbol."""
    # The captions are plain ASCII, so a simple pattern splits them as PIECES does.
    words = Counter(w for text in captions for w in re.findall(r"[a-z]+|[0-9]|[^\sa-z0-9]+", text.lower()))
    split = {w: (*w[:-1], w[-1] + "</w>") for w in words}
    merges = []
    while len(merges) < count:
        pairs = Counter()
        for word, symbols in split.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        for word, symbols in split.items():
            out, i = [], 0
            while i < len(symbols):
                if symbols[i : i + 2] == best:
                    out.append(best[0] + best[1])
                    i += 2
                else:
                    out.append(symbols[i])
                    i += 1
            split[word] = tuple(out)
    return merges


def vocabulary(captions):
    """(vocab.json text, merges.txt text) in the layout of CLIP's own files."""
    merges = learn_merges(captions)
    symbols = byte_symbols()
    tokens = symbols + [s + "</w>" for s in symbols] + ["".join(m) for m in merges] + [START, END]
    tokens = list(dict.fromkeys(tokens))
    vocab = json.dumps({token: i for i, token in enumerate(tokens)}, ensure_ascii=False)
    return vocab, "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges)


def tokenizer(vocab, merges):
    """A tokenizer that does as CLIP's does with these files."""
    table = json.loads(vocab)
    pairs = [tuple(line.split(" ")) for line in merges.splitlines()[1:] if line]
    model = BPE(table, pairs, unk_token=END, continuing_subword_prefix="", end_of_word_suffix="</w>", fuse_unk=False)
    made = Tokenizer(model)
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), behavior="removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    made.decoder = decoders.ByteLevel()
    return made


def ids(made, texts):
    """Token ids [n, 77]: start, the text (cut if too long), then end to the full length."""
    start, end = made.token_to_id(START), made.token_to_id(END)
    out = torch.full((len(texts), LENGTH), end, dtype=torch.long)
    for row, encoded in enumerate(made.encode_batch(list(texts), add_special_tokens=False)):
        body = [start, *encoded.ids[: LENGTH - 2]]
        out[row, : len(body)] = torch.tensor(body)
    return out


def config(size):
    return CLIPTextConfig(
        vocab_size=size,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        projection_dim=WIDTH,
        hidden_act="quick_gelu",
        bos_token_id=size - 2,
        eos_token_id=size - 1,
        pad_token_id=size - 1,
    )


def tokenizer_config():
    return dict(
        tokenizer_class="CLIPTokenizer",
        model_max_length=LENGTH,
        bos_token=START,
        eos_token=END,
        unk_token=END,
        pad_token=END,
        do_lower_case=True,
        errors="replace",
    )


def build(size):
    torch.manual_seed(12)
    shape = config(size)
    shape._attn_implementation = "eager"  # quicker than the fused one on a CPU
    return CLIPTextModel(shape)
