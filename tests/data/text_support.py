"""What the tests of tokenizers share: asking our tokenizers, and texts that show traps."""

import importlib.util
import json
import os
import pathlib
import random
import struct
import subprocess

DRIVER = pathlib.Path(os.environ["TRIREME_PROGRAM"]).parent / "text_driver"


def package(name):
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def drive(what, tokenizer, texts, *more):
    """Our answers to texts, given as str or bytes."""
    raw = [t if isinstance(t, bytes) else t.encode() for t in texts]
    done = subprocess.run([DRIVER, what, tokenizer, *more], capture_output=True,
                          input=b"".join(struct.pack("<Q", len(t)) + t for t in raw))
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_same(folder, oracle, texts, pairs=(), decode=True, overflow=False):
    """Every field of every encoding equals the oracle's, a `tokenizers.Tokenizer`."""
    def compare(ours, theirs, shown):
        got = {key: ours[key] for key in ("ids", "tokens", "type_ids", "special_tokens_mask", "attention_mask")}
        got["offsets"] = [tuple(o) for o in ours["offsets"]]
        got["words"] = [None if w < 0 else w for w in ours["words"]]
        got["sequences"] = [None if s < 0 else s for s in ours["sequences"]]
        expected = {"ids": theirs.ids, "tokens": theirs.tokens, "type_ids": theirs.type_ids,
                    "special_tokens_mask": theirs.special_tokens_mask, "attention_mask": theirs.attention_mask,
                    "offsets": theirs.offsets, "words": theirs.word_ids, "sequences": theirs.sequence_ids}
        for key, value in expected.items():
            assert got[key] == value, (key, shown)

    answers = drive("encodings", folder, texts)
    assert len(answers) == len(texts)
    for text, ours in zip(texts, answers):
        shown = ascii(text[:200])
        theirs, plain = oracle.encode(text), oracle.encode(text, add_special_tokens=False)
        compare(ours, theirs, shown)
        compare(ours["plain"], plain, shown)
        if oracle.truncation is None and oracle.padding is None:
            assert ours["fast"] == plain.ids, shown
            assert ours["fast_special"] == theirs.ids, shown
        if decode:
            assert ours["decoded"] == oracle.decode(ours["fast"], skip_special_tokens=False), shown
            assert ours["decoded_special"] == oracle.decode(ours["fast_special"]), shown
    if pairs:
        answers = drive("encodings", folder, [t for pair in pairs for t in pair], "pairs")
        for pair, ours in zip(pairs, answers):
            shown = ascii(pair)[:300]
            compare(ours, oracle.encode(*pair), shown)
            compare(ours["plain"], oracle.encode(*pair, add_special_tokens=False), shown)


TRAPS = (" \t\r\n\u00a0\u3000\u2028\u0085\u180e\u200b" "'sdlrevtm\u2019\u02bc\u017fSD"
         "aZé\u00df\u0130ж中あ한\u1100\u1161\u11a8\uac00ﬁ½①℃" "09٣½Ⅷ²"
         "\u0301\u0308\u0323\u0344\u1e69\u212b\u0958\u1fbd\u200d\ufe0f👍🏽👩👧🇩🇪"
         "_-<|>.,;(){}\"\\\x00\x7f\ufeff\ufffd\U0010ffff▁")


def random_texts(count, longest=60, seed=1):
    rng = random.Random(seed)
    return ["".join(rng.choices(TRAPS, k=rng.randint(0, longest))) for _ in range(count)]


# Every scalar value in the planes that hold assigned ones.
ASSIGNED = [chr(c) for r in (range(0xD800), range(0xE000, 0x323B0), range(0xE0000, 0xE01F0), range(0x10FF00, 0x110000)) for c in r]
MATERIAL = [
    "", " ", "  ", "\n", "\n\n  \n", "a", " a", "a ",
    "Hello, world! It's 3 o'clock; we'll see, they'd've said.",
    "'s 'S 'll'LL don't''t '", "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n\treturn x+1  # comment\n\n\nclass A:\n        pass\n",
    "12345 1,000.5 ½ ٣٤٥ ⅧⅨ", "Ça coûte 12 €, n'est-ce pas? À bientôt à Ångström!",
    "人工知能はすごい。自然言語处理很有意思。한국어 띄어쓰기",
    "👩\u200d👩\u200d👧\u200d👦 🇩🇪🇫🇷 👍🏽👋🏿 ❤️\u200d🔥", "e\u0301 n\u0303", "\u1e9b\u0323 \u0344\u0345",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 שָׁלוֹם السَّلَامُ",
    "\x00\x01\x7f\ufeff\ufffd", "a\u00a0b\u2003c\u3000 d\u0085e", "İSTANBUL ΣΊΣΥΦΟΣ ǅ ẞ",
    "ﬁne ﬀ ½ ℃ ㎏ ① ｆｕｌｌ ｗｉｄｔｈ カタカナ ｶﾞ", "ab" * 120, "x" * 101, "…start", "½half ½ end½",
]


def save(oracle, folder):
    folder.mkdir(exist_ok=True, parents=True)
    oracle.save(str(folder / "tokenizer.json"))
    return folder
