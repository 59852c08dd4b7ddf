"""The tokenizer on difficult strings, with the real CLIP vocabulary.

    tokens.py --bpe FILE --out DIR      FILE: bpe_simple_vocab_16e6.txt.gz, as the package open_clip_torch holds it

`tokens.json`: the strings, their ids from transformers' CLIPTokenizer, and the SHA-256 of the vocabulary file.
"""

import argparse
import gzip
import hashlib
import tempfile
from pathlib import Path

from transformers import CLIPTokenizer

import vocabulary
from storing import save_json

STRINGS = [
    "", " ", "a", "a photo of a cat", "A PHOTO OF A CAT", "MiXeD CaSe", "hello, world!",
    "it's the cat's 'bout time", "don't we'll they've I'm you're he'd O'Neil's", "IT'S CAN'T WE'LL",
    "’tis the cat’s “quoted” text", "1 12 123 2024 3.14 1,000", "x²+y³=½", "١٢٣ ①② Ⅳ", "café naïve façade",
    "cafe\u0301 nai\u0308ve", "a\u0301\u0328\u0316 zalgo\u0300\u0301\u0302\u0303", "straße STRASSE ẞ",
    "İstanbul ıI iİ", "ﬁ ﬂ ﬃ ligatures", "Ｆｕｌｌｗｉｄｔｈ ＡＢＣ１２３", "雪の中の猫", "中文测试文本", "한국어 텍스트", "한글 (jamo)",
    "ภาษาไทย ไม่มีช่องว่าง", "हिन्दी में लिखा", "مرحبا بالعالم", "שלום עולם", "\u202bمرحبا\u202c abc",
    "Ελληνικά ΣΊΣΥΦΟΣ", "русский ТЕКСТ ёЁ", "Việt Nam đẹp", "😀", "👍🏽👩‍👩‍👧‍👦🏳️‍🌈", "🇩🇪🇫🇷 flags", "text😀between",
    "tab\there", "line\nbreak", "\r\nwin\r\n", "a  b   c    d", "  leading and trailing  ",
    "a\u00a0b\u2003c\u3000d\u2009e", "zero\u200bwidth\u200djoiner\ufeff", "\u2028line\u2029para",
    "null\x00char", "\x01\x02\x7f control", "a\u0085b", "---___***", "!!!!!!!!", "...", "a.b.c...d",
    "#hashtag @user $100 50% & more", "http://example.com/a?b=c&d=e#f", "C:\\path\\file", "<|startoftext|>",
    "a <|endoftext|> b", "<|STARTOFTEXT|>", "<b>html</b> &amp; &lt;", "snake_case camelCase kebab-case",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "supercalifragilisticexpialidocious antidisestablishmentarianism", "(a:1.2) [b] {c} \\(d\\)", "a,b;c:d",
    "「日本語」、。！？", "ǅ ǆ Ǆ", "K (Kelvin) Å (Angstrom) Ω (Ohm)", "𝕬𝖇𝖈 𝟙𝟚𝟛 𐐀", "\U0010fffd\U000e0041 private", "�",
    "the quick brown fox jumps over the lazy dog " * 12, "雪" * 90,
]


def read_bpe(path):
    """`(vocabulary, pairs)` from OpenAI's merges file: 49408 tokens, 48894 merges."""
    lines = gzip.decompress(Path(path).read_bytes()).decode("utf-8").split("\n")
    pairs = [tuple(line.split()) for line in lines[1 : 49152 - 256 - 2 + 1]]
    symbols = vocabulary.byte_symbols()
    tokens = symbols + [s + "</w>" for s in symbols] + ["".join(pair) for pair in pairs]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    assert len(tokens) == 49408 and tokens[49406] == "<|startoftext|>"
    return {token: index for index, token in enumerate(tokens)}, pairs


def make(bpe, out):
    """Write `tokens.json` into `out`."""
    words, pairs = read_bpe(bpe)
    with tempfile.TemporaryDirectory() as scratch:
        vocabulary.save_files(scratch, words, pairs, "<|endoftext|>")
        tokenizer = CLIPTokenizer.from_pretrained(scratch)
    assert tokenizer("a photo of a cat").input_ids == [49406, 320, 1125, 539, 320, 2368, 49407]
    rows = [{"text": text, "ids": tokenizer(text, add_special_tokens=False).input_ids} for text in STRINGS]
    save_json(Path(out) / "tokens.json", {
        "vocabulary": "bpe_simple_vocab_16e6.txt.gz", "sha256": hashlib.sha256(Path(bpe).read_bytes()).hexdigest(),
        "note": "ids without beginning and end; nothing is cut", "strings": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bpe", required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    make(options.bpe, options.out)
