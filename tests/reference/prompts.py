"""Prompts: weights in brackets, chunks of 75 tokens, and the states they give. The rules, in full:

* `(a)` multiplies the weight of `a` by 1.1, `[a]` divides it by 1.1, `(a:1.3)` multiplies by 1.3; they nest.
* `\\(`, `\\)`, `\\[`, `\\]`, `\\\\` are the characters themselves; a lone backslash vanishes.
* Brackets left open at the end count as closed there. A closing bracket with none open is text, and so is
  `:number)` then, or when it is no number (`:1.2.3)`). A colon elsewhere is text. Neighbours of equal weight are joined.
* Each fragment is tokenized by itself; the tokens in a row are cut into chunks of 75; each chunk becomes
  BOS, tokens, EOS, and padding up to 77. At least one chunk. Beginning, end and padding weigh 1.
* A chunk's states (after the final norm) are multiplied by the weights of their tokens, then the whole chunk
  [77, C] by mean before / mean after, so that its mean stays (means in float64). Chunks where all weights
  are 1 are left alone.
* The chunks' states follow one another: [1, 77·n, C]. When the positive and the negative prompt differ in n,
  the shorter one gets chunks of the empty prompt.
* Clip skip k (1 is the last layer) takes the states k − 1 layers earlier, and the final norm applies all the same.
"""

import re

import torch

from storing import save_json

TOKEN = re.compile(r"\\[()\[\]\\]|\\|\(|\[|:\s*([+-]?[.\d]+)\s*\)|\)|\]|[^\\()\[\]:]+|:")

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)")

PARSED = [
    "", "a castle", "(a castle)", "((a castle))", "[a castle]", "a (red:1.5) castle", "a (red : 0.5 ) castle",
    "a (red (brick:1.2) wall:1.3)", "[(both)]", "(open at the end", "[open", "((two open", "closed) too early",
    r"escaped \(brackets\) and \[these\]", r"back\\slash", r"lone\backslash", "a:b:c", "ratio 16:9)", "(x:1.2) (y:1.2)",
    "(:1.5)", "()", "(a:-1)", "(a:.5)", "(a:1.)", "a (b) [c] (d:2) e", "(a, b:1.1), c", "(雪 and café:1.4)", "((a:2)b:3)",
    "(a\nb:1.2)", "  spaces  (kept)  ", "<lora:x:0.5>", "(a:1.2:1.3)", "[a:b:0.5]",
    "(a:1.2.3) b", "(a:..) b",
]


def parse(prompt):
    """[(text, weight), …] of a prompt with brackets."""
    fragments, round_open, square_open = [], [], []

    def scale(start, factor):
        for at in range(start, len(fragments)):
            fragments[at][1] *= factor

    for match in TOKEN.finditer(prompt):
        text, weight = match[0], match[1]
        if text.startswith("\\"):
            fragments.append([text[1:], 1.0])
        elif text == "(":
            round_open.append(len(fragments))
        elif text == "[":
            square_open.append(len(fragments))
        elif weight is not None and round_open and NUMBER.fullmatch(weight):
            scale(round_open.pop(), float(weight))
        elif text == ")" and round_open:
            scale(round_open.pop(), 1.1)
        elif text == "]" and square_open:
            scale(square_open.pop(), 1 / 1.1)
        else:
            fragments.append([text, 1.0])
    for start in round_open:
        scale(start, 1.1)
    for start in square_open:
        scale(start, 1 / 1.1)
    joined = []
    for text, weight in fragments:
        if joined and joined[-1][1] == weight:
            joined[-1][0] += text
        else:
            joined.append([text, weight])
    return joined or [["", 1.0]]


def chunks(tokenizer, prompt):
    """[(ids [77], weights [77]), …] of a prompt."""
    pairs = []
    for text, weight in parse(prompt):
        pairs += [(token, weight) for token in tokenizer(text, add_special_tokens=False).input_ids]
    parts = [pairs[at : at + 75] for at in range(0, len(pairs), 75)] or [[]]
    result = []
    for part in parts:
        fill = 75 - len(part)
        ids = [tokenizer.bos_token_id, *(token for token, _ in part), tokenizer.eos_token_id]
        result.append((ids + [tokenizer.pad_token_id] * fill, [1.0, *(weight for _, weight in part), 1.0] + [1.0] * fill))
    return result


@torch.no_grad()
def states(model, prompt, clip_skip=1, at_least=1):
    """States [1, 77·n, C] of a prompt, float32; `at_least` is the smallest n."""
    tokenizer, encoder = model["tokenizer"], model["text"]
    parts = chunks(tokenizer, prompt)
    parts += chunks(tokenizer, "") * (at_least - len(parts))
    rows = []
    for ids, weights in parts:
        result = encoder(torch.tensor([ids]), output_hidden_states=True)
        z = result.last_hidden_state
        if clip_skip > 1:
            z = encoder.final_layer_norm(result.hidden_states[-clip_skip])
        if any(weight != 1.0 for weight in weights):
            before = z.double().mean()
            z = z * torch.tensor(weights, dtype=torch.float32)[None, :, None]
            z = z * (before / z.double().mean()).float()
        rows.append(z)
    return torch.cat(rows, dim=1)


def pair(model, positive, negative, clip_skip=1):
    """(positive, negative) states of the same length."""
    count = max(len(chunks(model["tokenizer"], text)) for text in (positive, negative))
    return states(model, positive, clip_skip, count), states(model, negative, clip_skip, count)


# Examples that the program which introduced this syntax documents.
DOCUMENTED = {
    "normal text": [["normal text", 1.0]],
    "an (important) word": [["an ", 1.0], ["important", 1.1], [" word", 1.0]],
    "(unbalanced": [["unbalanced", 1.1]],
    r"\(literal\]": [["(literal]", 1.0]],
    "(unnecessary)(parens)": [["unnecessaryparens", 1.1]],
    "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).": [
        ["a ", 1.0], ["house", 1.5730000000000004], [" ", 1.1], ["on", 1.0], [" a ", 1.1], ["hill", 0.55],
        [", sun, ", 1.1], ["sky", 1.4641000000000006], [".", 1.1]],
}


def make(out):
    """Write `prompts.json`: prompts with brackets and the fragments they mean."""
    for prompt, expected in DOCUMENTED.items():
        assert parse(prompt) == expected, (prompt, parse(prompt))
    rows = [{"prompt": prompt, "fragments": parse(prompt)} for prompt in [*DOCUMENTED, *PARSED]]
    save_json(f"{out}/prompts.json", {"prompts": rows})
