# SPDX-License-Identifier: Apache-2.0
"""Random texts that look for trouble between tokenizers: scripts, digits of all kinds, runs of white
space, contractions, marks, emoji sequences, control characters. Only characters that Unicode has had
for long, so that different versions of its tables cannot matter."""

RANGES = [
    (0x41, 0x5A), (0x61, 0x7A), (0x61, 0x7A), (0xC0, 0x17F), (0x391, 0x3A1), (0x3B1, 0x3C9),
    (0x410, 0x44F), (0x5D0, 0x5EA), (0x621, 0x64A), (0x64B, 0x652), (0x904, 0x939), (0x93E, 0x94D),
    (0xE01, 0xE3A), (0x1780, 0x17B3), (0x10D0, 0x10F0), (0x3041, 0x3096), (0x30A1, 0x30FA),
    (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F600, 0x1F64F), (0x1F300, 0x1F320), (0x10400, 0x1044F),
    (0x1D400, 0x1D454), (0x20000, 0x2A6D6), (0x2190, 0x21FF), (0x2500, 0x257F), (0x300, 0x36F),
]
DIGITS = "0123456789" * 3 + "٠١٢٣٤٥۶۷०१२३๑๒²³¹½¾Ⅷⅳ①⑳〇一㉑𝟘𝟙"
SPACES = [" "] * 12 + ["\n"] * 4 + ["\t", "\r", "\r\n", "\r\n", "\x0b", "\x0c", "\x85", "\xa0", "\u1680", "\u2003",
                                  "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u180e", "\u200b", "\ufeff"]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + list("¡¿«»§¶–—…‘’“”„•·€£¥©®™、。「」！？")
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D",
                "'\u017f", "\u2019s", "''", "'", "'x"]
WORDS = ["the", "The", "hello", "HELLO", "world", "don", "I", "int", "return", "x", "über", "naïve", "привет",
         "мир", "Ελλάδα", "مرحبا", "שלום", "नमस्ते", "你好", "世界", "こんにちは", "안녕하세요", "สวัสดี", "कान्तः"]
SPECIAL = ["<|im_end|>", "<|im_start|>", "</s>", "<s>", "<0x0A>", "<|endoftext|>", "<|eot_id|>", "<unk>"]
EMOJI = ["😀", "👩\u200d👩\u200d👧", "🇩🇪", "❤\ufe0f", "😶\u200d🌫\ufe0f", "🦙", "✅", "👍🏽", "🏴"]


def _piece(rng):
    kind = rng.random()
    if kind < 0.25:
        low, high = rng.choice(RANGES)
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8)))
    if kind < 0.40:
        return "".join(rng.choice(SPACES) for _ in range(rng.choice([1, 1, 1, 2, 3, 7])))
    if kind < 0.55:
        return rng.choice(WORDS)
    if kind < 0.65:
        return "".join(rng.choice(DIGITS) for _ in range(rng.choice([1, 1, 2, 3, 4, 5, 9])))
    if kind < 0.75:
        return "".join(rng.choice(PUNCTUATION) for _ in range(rng.choice([1, 1, 2, 3, 6])))
    if kind < 0.83:
        return rng.choice(CONTRACTIONS)
    if kind < 0.88:
        return rng.choice(EMOJI)
    if kind < 0.91:
        return rng.choice(SPECIAL)
    if kind < 0.94:
        return chr(rng.choice([*range(1, 32), 127, *range(0x80, 0xA0)]))
    if kind < 0.97:
        return rng.choice("aA1. \n'é中") * rng.randint(2, 40)
    return " "


def random_text(rng):
    """A text of 1 to about 150 characters; rng: random.Random."""
    return "".join(_piece(rng) for _ in range(rng.randint(1, 24)))
