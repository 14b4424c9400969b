"""Every normalizer, pre-tokenizer, model, post-processor and decoder against Hugging Face's library: small tokenizers of
many combinations, trained on the spot, on texts that show traps."""

import io
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers as N, pre_tokenizers as P, processors
from tokenizers import trainers
from text_support import ASSIGNED, DRIVER, MATERIAL, assert_same, drive, random_texts, save

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from protobuf_fields import fields

FULL = os.environ.get("TRIREME_FULL") == "1"
TEXTS = MATERIAL + random_texts(60, seed=9)


def charsmap():
    """The precompiled map of SentencePiece's nmt_nfkc, as bytes."""
    import sentencepiece
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["a b c d e f g"] * 20), model_writer=model, vocab_size=14,
                                             hard_vocab_limit=False, normalization_rule_name="nmt_nfkc", minloglevel=2)

    spec = next(value for number, value in fields(model.getvalue()) if number == 3)
    return next(value for number, value in fields(spec) if number == 2)


NORMALIZERS = {
    "none": lambda: None,
    "bert": lambda: N.BertNormalizer(), "bert_plain": lambda: N.BertNormalizer(lowercase=False),
    "bert_accents": lambda: N.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False),
    "nfc": lambda: N.NFC(), "nfd": lambda: N.NFD(), "nfkc": lambda: N.NFKC(), "nfkd": lambda: N.NFKD(),
    "lowercase": lambda: N.Lowercase(), "accents": lambda: N.Sequence([N.NFD(), N.StripAccents()]),
    "strip": lambda: N.Strip(), "strip_left": lambda: N.Strip(right=False), "nmt": lambda: N.Nmt(),
    "replace": lambda: N.Replace("'", "’’"), "replace_regex": lambda: N.Replace(Regex(r"\s+|é"), " "),
    "remove": lambda: N.Replace(Regex(r"[aeiou]"), ""), "prepend": lambda: N.Prepend("▁x"),
    "llama": lambda: N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]),
    "bytes": lambda: N.ByteLevel(), "precompiled": lambda: N.Precompiled(charsmap()),
    "albert": lambda: N.Sequence([N.Replace("``", '"'), N.NFKD(), N.StripAccents(), N.Lowercase(),
                                  N.Precompiled(charsmap())]),
    "t5": lambda: N.Sequence([N.Precompiled(charsmap()), N.Strip(left=False), N.Replace(Regex(" {2,}"), "▁")]),
    "precompiled_first": lambda: N.Sequence([N.Precompiled(charsmap()), N.Lowercase(), N.NFC()]),
}
PRE_TOKENIZERS = {
    "none": lambda: None,
    "byte_level": lambda: P.ByteLevel(add_prefix_space=False), "byte_level_prefix": lambda: P.ByteLevel(),
    "byte_level_plain": lambda: P.ByteLevel(use_regex=False),
    "whitespace": lambda: P.Whitespace(), "whitespace_split": lambda: P.WhitespaceSplit(), "bert": lambda: P.BertPreTokenizer(),
    "metaspace": lambda: P.Metaspace(), "metaspace_first": lambda: P.Metaspace(prepend_scheme="first"),
    "metaspace_never": lambda: P.Metaspace(prepend_scheme="never"),
    "metaspace_whole": lambda: P.Metaspace(split=False, prepend_scheme="first"),
    "t5": lambda: P.Sequence([P.WhitespaceSplit(), P.Metaspace()]),
    "digits": lambda: P.Digits(), "digits_each": lambda: P.Sequence([P.WhitespaceSplit(), P.Digits(individual_digits=True)]),
    "char": lambda: P.CharDelimiterSplit("o"), "scripts": lambda: P.UnicodeScripts(), "fixed": lambda: P.FixedLength(3),
    "split_string": lambda: P.Split("e", "merged_with_next"),
    "split_invert": lambda: P.Split(Regex(r"\w+"), "removed", invert=True),
    "cl100k": lambda: P.Sequence([P.Split(Regex(CL100K), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)]),
    "deepseek": lambda: P.Sequence([P.Split(Regex(r"\p{N}{1,3}"), "isolated"), P.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
                                    P.Split(Regex(r"[!-/]?[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
                                                  r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
                                    P.ByteLevel(add_prefix_space=False, use_regex=False)]),
}
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": CL100K, "qwen2": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST,
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}?"
             r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
MODELS = {
    "bpe": (lambda: models.BPE(unk_token="[UNK]"), dict(limit_alphabet=90)),
    "bpe_fused": (lambda: models.BPE(unk_token="[UNK]", fuse_unk=True), dict(limit_alphabet=40)),
    "bpe_affixes": (lambda: models.BPE(unk_token="[UNK]", continuing_subword_prefix="##", end_of_word_suffix="</w>"),
                    dict(continuing_subword_prefix="##", end_of_word_suffix="</w>")),
    "bpe_bytes": (lambda: models.BPE(unk_token="[UNK]", byte_fallback=True, fuse_unk=True), dict(limit_alphabet=40)),
    "wordpiece": (lambda: models.WordPiece(unk_token="[UNK]"), dict(limit_alphabet=90)),
    "wordlevel": (lambda: models.WordLevel(unk_token="[UNK]"), {}),
    "unigram": (lambda: models.Unigram(), {}),
    "unigram_bytes": (lambda: models.Unigram(), {}),
}
TRAINERS = {"bpe": trainers.BpeTrainer, "wordpiece": trainers.WordPieceTrainer, "wordlevel": trainers.WordLevelTrainer,
            "unigram": trainers.UnigramTrainer}


def small(model, normalizer=None, pre_tokenizer=None, special=("[UNK]",), corpus=MATERIAL[:-4]):
    make, settings = MODELS[model]
    tokenizer = Tokenizer(make())
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    kind = model.split("_")[0]
    bytes_ = [f"<0x{b:02X}>" for b in range(256)] if model.endswith("_bytes") else []
    if kind == "unigram":
        settings = settings | {"unk_token": "[UNK]"}
    trainer = TRAINERS[kind](vocab_size=400 + len(bytes_), special_tokens=list(special) + bytes_, show_progress=False, **settings)
    tokenizer.train_from_iterator([t for t in corpus if t], trainer)
    if bytes_:
        document = json.loads(tokenizer.to_str())
        document["model"]["byte_fallback"] = True
        document["added_tokens"] = [t for t in document["added_tokens"] if not t["content"].startswith("<0x")]
        tokenizer = Tokenizer.from_str(json.dumps(document))
    return tokenizer


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_combinations(tmp_path, normalizer):
    """Each normalizer with each pre-tokenizer; the models take turns, so that each meets most of the others. In full: all
    with all."""
    names = list(MODELS)
    for i, cutter in enumerate(PRE_TOKENIZERS):
        turn = (i + 3 * list(NORMALIZERS).index(normalizer)) % len(names)
        for model in names if FULL else names[turn:turn + 1]:
            oracle = small(model, NORMALIZERS[normalizer](), PRE_TOKENIZERS[cutter]())
            try:
                assert_same(save(oracle, tmp_path), oracle, TEXTS)
            except AssertionError as e:
                raise AssertionError(f"{normalizer} + {cutter} + {model}: {e}") from e


# Each kind of code point; of ideographs and Hangul syllables, which are many and alike, one in 16.
VARIED = [c for c in ASSIGNED if not ("\u3400" <= c < "\ud800" or "\U00020000" <= c < "\U000e0000") or ord(c) % 16 == 0]


@pytest.mark.parametrize("name", ["bert", "bert_plain", "nfc", "nfd", "nfkc", "nfkd", "lowercase", "accents", "strip", "nmt",
                                  "replace_regex", "precompiled", *PRE_TOKENIZERS])
def test_every_kind_of_character(tmp_path, name):
    """In a row, and in the first plane between letters too. Where tokens are bytes, ids are the normalized text."""
    if name in PRE_TOKENIZERS:
        oracle = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
        if name != "none":
            oracle.pre_tokenizer = PRE_TOKENIZERS[name]()
    else:
        vocabulary = {f"<0x{b:02X}>": b for b in range(256)} | {"[UNK]": 256}
        oracle = Tokenizer(models.BPE(vocabulary, [], unk_token="[UNK]", byte_fallback=True))
        oracle.normalizer = NORMALIZERS[name]()
    texts = ["".join(VARIED[i:i + 20_000]) for i in range(0, len(VARIED), 20_000)]
    texts += ["a".join(VARIED[i:i + 8192]) for i in range(0, 0x3000, 8192)]
    for text, ours in zip(texts, drive("encode", save(oracle, tmp_path), texts)):
        theirs = oracle.encode(text)
        assert ours["ids"] == theirs.ids and ours["same_ids"], ascii(text[:40])
        assert [tuple(o) for o in ours["offsets"]] == theirs.offsets, ascii(text[:40])


@pytest.mark.parametrize("behavior", ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"])
def test_split_behaviors(tmp_path, behavior):
    for invert in (False, True):
        for pattern in (" ", "ll", Regex(r"\s"), Regex(r"\p{Lu}|[0-9]+"), Regex(r"(?<=a)b?"), Regex(r"x{0,2}+")):
            oracle = small("bpe", None, P.Split(pattern, behavior, invert))
            assert_same(save(oracle, tmp_path), oracle, TEXTS)
    oracle = small("bpe", None, P.Punctuation(behavior))
    assert_same(save(oracle, tmp_path), oracle, TEXTS)


@pytest.mark.parametrize("name", PATTERNS)
def test_known_patterns(tmp_path, name):
    """The hand-written scanners cut as the regular expressions do: on traps, and on every scalar value."""
    rng = random.Random(4)
    scalars = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = TEXTS + random_texts(2000, seed=5)
    texts += ["".join(scalars[i:i + 20_000]) for i in range(0, len(scalars), 20_000)]
    texts += [" ".join(f"a{c}b{c}{c}'{c} {c}1{c}" for c in scalars[i:i + 4096]) for i in range(0, 0x3000, 4096)]
    texts += ["".join(rng.choices("aAǅªʰ\u0301中 '’sTlLſ\n\r/.1\t", k=40)) for _ in range(3000)]
    cut = P.Split(Regex(PATTERNS[name]), "isolated")
    oracle = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    oracle.pre_tokenizer = cut
    for text, ours in zip(texts, drive("encodings", save(oracle, tmp_path), texts)):
        assert [tuple(o) for o in ours["offsets"]] == [o for _, o in cut.pre_tokenize_str(text)], ascii(text[:200])


REGEXES = [r"\p{L}", r"\P{L}+", r"[^\p{L}\s]+", r"[\P{N}a]", r"\w+", r"\W", r"[\w.]+", r"[\W\d]+", r"\d", r"\D+",
           r"[[:punct:]]", r"[[:^alpha:]\n]+", r"\p{Han}+|\p{Hiragana}", r"\p{^Lu}", r"\h+", r"(?i:SS|é)+", r"^.", r".$",
           r"(?m:a.b|\r.)", r"(a|b)\1", r"(?<!a)[bc]", r"a{2,3}+b?", r"a{2}?b|c{,2}", r"\u00e9|\x{4e2d}", r"[^a-z]{1,2}?",
           r"(?#note)a", r"\p{P}|\p{S}|\p{M}|\p{Sc}|\p{Cf}", r"[ -~]+?", r"\R", r"(?>a+)b", r"[\p{C}&&[^\n]]", r"[]a-c-e\-\]]+",
           r"[a-z&&[^aeiou]]+|[^a-z&&[bX[:blank:]]]", r"[[:alnum:]]+|[[:cntrl:][:xdigit:]]", r"\t\x41?|[\e\b\0]"]
# Letters without case: single ones, ranges, classes by name and several that are one character.
REGEXES += [r"(?i:ss+|ffi)", r"(?i:[ßﬃ])", r"(?i:[^ßk])+", r"(?i:ΐ|i\u0307)", r"(?i:\p{Lu})", r"(?i:[\p{Lu}]+)", r"(?i:[k-s])+",
            r"a(?i)b|c(?-i)D", r"(?i:σ|ǆ|ꭰ|\x{10d50})"]



@pytest.mark.parametrize("pattern", REGEXES)
def test_regular_expressions(tmp_path, pattern):
    cut = P.Split(Regex(pattern), "isolated")
    oracle = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    oracle.pre_tokenizer = cut
    texts = TEXTS + random_texts(300, seed=8) + ["".join(ASSIGNED[i:i + 65536]) for i in range(0, len(ASSIGNED), 65536)]
    texts += ["aabbab abcab\naaab", "\r\n\n\r", "line\nline\n", "SS ß éÉ sßs ssss ẞſs", "ffi ﬃ ﬀi fﬁ FFI", "\u1fd3 \u03b9\u0308\u0301 \u0130 i\u0307I",
              "aB C aC abD aCD\naCd ccc"]
    for text, ours in zip(texts, drive("encodings", save(oracle, tmp_path), texts)):
        assert [tuple(o) for o in ours["offsets"]] == [o for _, o in cut.pre_tokenize_str(text)], ascii(text[:200])


@pytest.mark.parametrize("pattern, what", [
    (r"a\b", r"\b is not supported"), (r"\pL", "without braces"), (r"\p{Emoji}", "Emoji"), (r"(?x: a)", "option 'x'"),
    (r"[[:upper:]]", "[:upper:]"), (r"[\d-x]", "a range that begins with a class"), (r"[a-z&&^h]", "after &&"), (r"[z-a]", "range is empty"),
    (r"(?i:(s)\1)", "where case does not matter"), (r"a)", "closes nothing"), (r"(a", "regular expression (a"), (r"[a", "it ends early"), (r"\x{d800}", "no such character"), (r"\xff", "no character")])
def test_refused_regular_expressions(tmp_path, pattern, what):
    document = json.loads(small("wordlevel", None, P.Whitespace()).to_str())
    document["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    done = subprocess.run([DRIVER, "encode", tmp_path], input=b"", capture_output=True)
    assert done.returncode == 2 and what in done.stderr.decode(), done.stderr
    assert "pre_tokenizer" in done.stderr.decode()


SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
POST_PROCESSORS = {
    "bert": lambda: processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)),
    "roberta": lambda: processors.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1)),
    "roberta_plain": lambda: processors.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1), trim_offsets=False),
    "template": lambda: processors.TemplateProcessing(
        single="[CLS] $A:3 [SEP]:4", pair="$B:1 [SEP] [CLS]:5 $A:0 [SEP]:2",
        special_tokens=[("[CLS]", 1), {"id": "[SEP]", "ids": [2, 3], "tokens": ["[SEP]", "[PAD]"]}]),
    "sequence": lambda: processors.Sequence([processors.ByteLevel(trim_offsets=True), processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A $B:1", special_tokens=[("[CLS]", 1)])]),
    "byte_level": lambda: processors.ByteLevel(trim_offsets=True),
}


@pytest.mark.parametrize("name", POST_PROCESSORS)
@pytest.mark.parametrize("cutter", ["byte_level_prefix", "byte_level", "whitespace", "metaspace"])
def test_post_processors(tmp_path, name, cutter):
    oracle = small("bpe", None, PRE_TOKENIZERS[cutter](), SPECIAL)
    oracle.post_processor = POST_PROCESSORS[name]()
    assert_same(save(oracle, tmp_path), oracle, TEXTS, pairs=list(zip(TEXTS, TEXTS[3:])))


@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
@pytest.mark.parametrize("direction", ["left", "right"])
@pytest.mark.parametrize("stride", [0, 2])
def test_truncation_and_padding(tmp_path, strategy, direction, stride):
    oracle = small("bpe", None, P.Whitespace(), SPECIAL)
    oracle.post_processor = POST_PROCESSORS["bert"]()
    long = [t for t in TEXTS if len(oracle.encode(t).ids) > 40][:8]
    texts = TEXTS if strategy != "only_second" else []
    pairs = list(zip(TEXTS, TEXTS[3:])) if strategy == "longest_first" else list(zip(long, long[1:]))
    for length in (12, 31):
        oracle.enable_truncation(length, stride=stride, strategy=strategy, direction=direction)
        oracle.no_padding()
        assert_same(save(oracle, tmp_path), oracle, texts, pairs if strategy == "longest_first" else [])
        for padding in (dict(length=20, direction=direction, pad_id=3, pad_type_id=1), dict(pad_to_multiple_of=8)):
            oracle.enable_padding(pad_token="[PAD]", **padding)
            assert_same(save(oracle, tmp_path), oracle, texts, pairs if strategy == "longest_first" else [])


def test_overflow_is_kept(tmp_path):
    """Encoding may stop early elsewhere, which loses what overflows; here the windows are all there."""
    oracle = small("wordlevel", None, P.Whitespace(), SPECIAL)
    oracle.post_processor = POST_PROCESSORS["bert"]()
    text = "The quick brown fox jumps over the lazy dog."
    ids = oracle.encode(text, add_special_tokens=False).ids
    oracle.enable_truncation(6, stride=1)
    answer = drive("encodings", save(oracle, tmp_path), [text])[0]
    assert answer["ids"] == [1, *ids[:4], 2]
    assert answer["overflowing"] == [[1, *ids[3:7], 2], [1, *ids[6:10], 2]]


@pytest.mark.parametrize("normalizer", ["none", "bert", "nfkc", "llama", "strip"])
def test_added_tokens(tmp_path, normalizer):
    for cutter in ("whitespace", "byte_level_prefix", "metaspace_first"):
        oracle = small("bpe", NORMALIZERS[normalizer](), PRE_TOKENIZERS[cutter](), SPECIAL)
        oracle.add_tokens([
            AddedToken("<mask>", lstrip=True, special=True), AddedToken("new", single_word=True),
            AddedToken("newest", normalized=False), AddedToken("É"), AddedToken("日本"), AddedToken("½"),
            AddedToken("é-x", normalized=False), AddedToken("<r>", rstrip=True, normalized=False),
            AddedToken("Both", lstrip=True, rstrip=True, single_word=True)])
        pieces = ["new", "newest", "news", " new ", "_new", "é-x", "É", "é", "½", "日本語", "  ", "\t", "<mask>", " <mask>",
                  "[CLS]", "[SEP]", "x", "<r> \n", "\u200dnew", "newé", "²new", "Both", " both ", "<", ">"]
        rng = random.Random(7)
        texts = ["".join(rng.choices(pieces, k=rng.randint(1, 9))) for _ in range(300)]
        try:
            assert_same(save(oracle, tmp_path), oracle, texts)
        except AssertionError as e:
            raise AssertionError(f"{normalizer} + {cutter}: {e}") from e


DECODERS = {
    "none": lambda: None, "byte_level": lambda: decoders.ByteLevel(), "wordpiece": lambda: decoders.WordPiece(),
    "wordpiece_plain": lambda: decoders.WordPiece(prefix="a", cleanup=False), "metaspace": lambda: decoders.Metaspace(),
    "metaspace_never": lambda: decoders.Metaspace(prepend_scheme="never"), "bpe": lambda: decoders.BPEDecoder(suffix="</w>"),
    "ctc": lambda: decoders.CTC(pad_token="e", word_delimiter_token="l"), "fuse": lambda: decoders.Fuse(),
    "ctc_plain": lambda: decoders.CTC(cleanup=False), "fallback": lambda: decoders.ByteFallback(),
    # Hugging Face's library panics where a token would be stripped of more than it has.
    "strip": lambda: decoders.Strip("l", 1, 0), "strip_end": lambda: decoders.Strip("l", 0, 1), "replace": lambda: decoders.Replace("e", "ee"),
    "replace_regex": lambda: decoders.Replace(Regex("[aeiou]+"), "*"),
    "llama": lambda: decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                        decoders.Strip(" ", 1, 0)]),
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("model, cutter", [("bpe_bytes", "metaspace"), ("wordpiece", "bert"), ("bpe_affixes", "whitespace"),
                                           ("bpe", "byte_level"), ("unigram_bytes", "metaspace")])
def test_decoders(tmp_path, name, model, cutter):
    oracle = small(model, None, PRE_TOKENIZERS[cutter](), SPECIAL)
    decoder = DECODERS[name]()
    if decoder:
        oracle.decoder = decoder
    assert_same(save(oracle, tmp_path), oracle, TEXTS)


@pytest.mark.parametrize("name", ["llama", "byte_level", "wordpiece", "metaspace"])
def test_streaming(tmp_path, name):
    from tokenizers.decoders import DecodeStream
    model, cutter = {"llama": ("bpe_bytes", "metaspace_whole"), "byte_level": ("bpe", "byte_level"),
                     "wordpiece": ("wordpiece", "bert"), "metaspace": ("unigram", "metaspace")}[name]
    oracle = small(model, None, PRE_TOKENIZERS[cutter](), SPECIAL)
    oracle.decoder = DECODERS[name]()
    for text, ours in zip(TEXTS, drive("stream", save(oracle, tmp_path), TEXTS)):
        ids = oracle.encode(text).ids
        stream = DecodeStream(skip_special_tokens=False)
        expected = [stream.step(oracle, i) or "" for i in ids]
        if "\ufffd" not in text and "\ufffd" not in oracle.decode(ids, skip_special_tokens=False):
            assert ours["parts"] == expected, ascii(text)
        whole = oracle.decode(ids, skip_special_tokens=False)
        assert "".join(ours["parts"]) + ours["rest"] == whole, ascii(text)


def test_old_files_without_types(tmp_path):
    document = json.loads(small("wordpiece", None, P.BertPreTokenizer()).to_str())
    del document["model"]["type"]
    oracle = Tokenizer.from_str(json.dumps(document))
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert_same(tmp_path, oracle, TEXTS)


@pytest.mark.parametrize("old, new", [({"add_prefix_space": True}, "always"), ({"add_prefix_space": False}, "never")])
def test_old_metaspace(tmp_path, old, new):
    document = json.loads(small("unigram", None, P.Metaspace(prepend_scheme=new)).to_str())
    oracle = Tokenizer.from_str(json.dumps(document))
    document["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "str_rep": "▁"} | old
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert_same(tmp_path, oracle, TEXTS)
