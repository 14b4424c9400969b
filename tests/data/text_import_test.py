"""SentencePiece's and tiktoken's files against the libraries that they come from, and training."""

import base64
import importlib.util
import io
import json
import pathlib
import random
import subprocess

import pytest
import sentencepiece
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from text_support import DRIVER, MATERIAL, assert_same, drive, package, random_texts

SOURCES = [str(p) for p in sorted((package("torch") / "nn").rglob("*.py"))][::2]
PROSE = [line for p in SOURCES[:30] for line in pathlib.Path(p).read_text().splitlines() if line.strip()]


def sentencepiece_model(folder, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(PROSE + [t for t in MATERIAL if t.strip()]),
                                             model_writer=model, minloglevel=2, **({"vocab_size": 600} | options))
    folder.mkdir(exist_ok=True)
    (folder / "spiece.model").write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.mark.parametrize("options", [
    {}, {"byte_fallback": True, "vocab_size": 900}, {"model_type": "bpe"}, {"add_dummy_prefix": False},
    {"model_type": "bpe", "byte_fallback": True, "vocab_size": 900, "remove_extra_whitespaces": False,
     "normalization_rule_name": "identity"},
    {"normalization_rule_name": "nfkc_cf"}, {"split_by_whitespace": False},
    {"user_defined_symbols": ["<sep>", "@@"], "remove_extra_whitespaces": False}],
    ids=lambda o: "-".join(f"{k}={v}" for k, v in o.items()) or "default")
def test_sentencepiece(tmp_path, options):
    oracle = sentencepiece_model(tmp_path, **options)
    texts = [t for t in MATERIAL if "\x00" not in t] + PROSE[:300] + ["a  b   c ", " lead", "<sep>x@@ y", "x <sep> y"]
    # Decomposed text and characters that stand for spaces are normalized otherwise by Hugging Face's library, whose
    # tokenizer.json this becomes; they are compared with that library below.
    own = [t for t in texts if not any(ord(c) > 0x2FF and not c.isalpha() or c == "\u0301" for c in t)]
    if "user_defined_symbols" in options:  # tokenizer.json has no stage that puts a prefix before these
        own = [t for t in own if t[:1].strip() and not t.startswith("<sep>")]
    answers = dict(zip(texts, drive("encodings", tmp_path / "spiece.model", texts)))
    for text in own:
        ids = oracle.encode(text)
        assert answers[text]["fast"] == ids, ascii(text)
        assert answers[text]["plain"]["ids"] == ids, ascii(text)
        if oracle.unk_id() not in ids:  # what SentencePiece decodes to a text of its own
            assert answers[text]["decoded"] == oracle.decode(ids), ascii(text)


def test_sentencepiece_as_hugging_face_reads_it(tmp_path):
    sentencepiece_model(tmp_path)
    subprocess.run([DRIVER, "save", tmp_path, tmp_path / "saved"], check=True)
    oracle = Tokenizer.from_file(str(tmp_path / "saved/tokenizer.json"))
    assert_same(tmp_path, oracle, MATERIAL + random_texts(200))


@pytest.mark.parametrize("damage", range(3))
def test_damaged_models_are_refused(tmp_path, damage):
    sentencepiece_model(tmp_path, vocab_size=300)
    good = (tmp_path / "spiece.model").read_bytes()
    rng = random.Random(damage)
    for _ in range(40):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        if damage == 1:
            bad = bad[:rng.randrange(len(bad))]
        if damage == 2:
            bad = bytearray(rng.randbytes(rng.randint(0, 300)))
        (tmp_path / "spiece.model").write_bytes(bad)
        done = subprocess.run([DRIVER, "encode", tmp_path / "spiece.model"], input=b"", capture_output=True)
        assert done.returncode in (0, 2), done.stderr
        assert done.returncode == 0 or b"spiece.model" in done.stderr


def tiktoken_file(folder, name, pattern):
    """A small file of ranks, made from a tokenizer that Hugging Face's library trains."""
    oracle = Tokenizer(models.BPE())
    cut = pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    oracle.pre_tokenizer = cut
    oracle.train_from_iterator(PROSE + MATERIAL, trainers.BpeTrainer(
        vocab_size=2000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    document = json.loads(oracle.to_str())
    document["model"]["ignore_merges"] = True
    alphabet = {c: b for b, c in byte_alphabet().items()}
    lines = [base64.b64encode(bytes(alphabet[c] for c in token)).decode() + f" {rank}"
             for token, rank in document["model"]["vocab"].items()]
    (folder / name).write_text("\n".join(lines) + "\n")
    return Tokenizer.from_str(json.dumps(document))


def byte_alphabet():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


@pytest.mark.parametrize("name", ["cl100k_base", "o200k_base", "qwen", "r50k_base"])
def test_tiktoken(tmp_path, name):
    from text_pipeline_test import PATTERNS
    from tokenizers import Regex
    pattern = PATTERNS[{"cl100k_base": "cl100k", "o200k_base": "o200k", "qwen": "qwen2", "r50k_base": "gpt2"}[name]]
    oracle = tiktoken_file(tmp_path, name + ".tiktoken", Regex(pattern))
    texts = MATERIAL + random_texts(300) + PROSE[:200]
    for text, ours in zip(texts, drive("encodings", tmp_path / (name + ".tiktoken"), texts)):
        assert ours["fast"] == oracle.encode(text).ids, ascii(text)
        assert ours["decoded"] == text


@pytest.mark.parametrize("name, special", [
    ("p50k_base", {"<|endoftext|>": 50256}), ("r50k_base", {"<|endoftext|>": 50256}),
    ("cl100k_base", {"<|endoftext|>": 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260,
                     "<|endofprompt|>": 100276}),
    ("o200k_base", {"<|endoftext|>": 199999, "<|endofprompt|>": 200018})])
def test_tiktoken_as_its_library_reads_it(tmp_path, monkeypatch, name, special):
    """The published layouts over a small vocabulary; p50k has tokens behind the special one."""
    import tiktoken
    import tiktoken_ext.openai_public as public
    from text_pipeline_test import PATTERNS
    from tokenizers import Regex
    tiktoken_file(tmp_path, "ranks", Regex(PATTERNS["gpt2"]))
    lines = (tmp_path / "ranks").read_text().splitlines()
    if name == "p50k_base":
        known = {line.split()[0] for line in lines}
        spaces = {50255 + n: base64.b64encode(b" " * n).decode() for n in range(2, 26)}
        lines += [f"{token} {rank}" for rank, token in spaces.items() if token not in known]
    (tmp_path / f"{name}.tiktoken").write_text("\n".join(lines) + "\n")
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines}
    for load in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
        monkeypatch.setattr(public, load, lambda *a, **k: ranks)
    made = getattr(public, name)()
    made.pop("explicit_n_vocab", None)
    oracle = tiktoken.Encoding(**made)
    assert {t: i for t, i in made["special_tokens"].items()} == special
    texts = MATERIAL + random_texts(200) + PROSE[:100] + ["a<|endoftext|>b", "x" + " " * 30 + "y", *special]
    for text, ours in zip(texts, drive("encodings", tmp_path / f"{name}.tiktoken", texts)):
        assert ours["fast"] == oracle.encode(text, allowed_special="all"), ascii(text)
        assert ours["decoded"] == text
    subprocess.run([DRIVER, "save", tmp_path / f"{name}.tiktoken", tmp_path / "saved"], check=True)
    saved = Tokenizer.from_file(str(tmp_path / "saved/tokenizer.json"))
    for text, ids in zip(texts, drive("ids", tmp_path / f"{name}.tiktoken", texts)):
        assert saved.encode(text, add_special_tokens=False).ids == ids, ascii(text)


def test_llama_3(tmp_path):
    """tokenizer.model of ranks: 256 special tokens behind the last one, as Llama 3's own program has them."""
    from text_pipeline_test import PATTERNS
    from tokenizers import Regex
    oracle = tiktoken_file(tmp_path, "tokenizer.model", Regex(PATTERNS["cl100k"]))
    with open(tmp_path / "tokenizer.model", "a") as file:  # ranks in between are nobody's
        file.write(f"{base64.b64encode(b'the last of them').decode()} 127999\n")
    names = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{i}|>" for i in range(4)), "<|start_header_id|>",
             "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>", *(f"<|reserved_special_token_{i}|>" for i in range(5, 251))]
    assert len(names) == 256
    assert drive("ids", tmp_path, names) == [[128000 + i] for i in range(256)]
    chat = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi there!<|eot_id|>"
    ids = drive("ids", tmp_path, [chat])[0]
    assert ids[:2] == [128000, 128006] and ids[-1] == 128009
    texts = MATERIAL + random_texts(200) + PROSE[:100]
    for text, ours in zip(texts, drive("encodings", tmp_path, texts)):
        assert ours["fast"] == oracle.encode(text).ids, ascii(text)
        assert ours["decoded"] == text
    subprocess.run([DRIVER, "save", tmp_path, tmp_path / "saved"], check=True)
    config = json.loads((tmp_path / "saved/tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|begin_of_text|>", "<|end_of_text|>")
    assert Tokenizer.from_file(str(tmp_path / "saved/tokenizer.json")).encode(chat, add_special_tokens=False).ids == ids


def test_tiktoken_refusals(tmp_path):
    for name, content, message in (
            ("mine.tiktoken", "YQ== 0\n", "the name says"), ("qwen.tiktoken", "YQ== 0\nYQ== 1\n", "are the same"),
            ("qwen.tiktoken", "YQ== 0\nYg==\n", ":2: expected"), ("qwen.tiktoken", "Y?== 0\n", "base64"),
            ("qwen.tiktoken", "YQ== 0\nYg== 0\n", "given twice"), ("qwen.tiktoken", "YQ== 999999999\n", "out of range"),
            ("qwen.tiktoken", "", "no tokens")):
        (tmp_path / name).write_text(content)
        done = subprocess.run([DRIVER, "encode", tmp_path / name], input=b"", capture_output=True)
        assert done.returncode == 2 and message in done.stderr.decode(), done.stderr


def byte_level_files(folder, special, **config):
    """vocab.json and merges.txt of a small tokenizer, and what transformers writes beside them."""
    oracle = Tokenizer(models.BPE())
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    oracle.train_from_iterator(PROSE + MATERIAL, trainers.BpeTrainer(
        vocab_size=700, show_progress=False, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    oracle.model.save(str(folder))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return dict(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))


def assert_as_transformers(folder, fast, texts):
    for text, ours in zip(texts, drive("encodings", folder, texts)):
        theirs = fast(text, return_offsets_mapping=True, return_special_tokens_mask=True)
        assert ours["ids"] == theirs["input_ids"], ascii(text)
        assert [tuple(o) for o in ours["offsets"]] == theirs["offset_mapping"], ascii(text)
        assert ours["special_tokens_mask"] == theirs["special_tokens_mask"], ascii(text)


@pytest.mark.parametrize("config", [{}, {"add_prefix_space": True}, {"trim_offsets": False}])
def test_roberta_files(tmp_path, config):
    from transformers import RobertaTokenizer
    files = byte_level_files(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], tokenizer_class="RobertaTokenizer", **config)
    assert_as_transformers(tmp_path, RobertaTokenizer(**files, **config), MATERIAL + random_texts(100) + ["a <mask> b</s>"])


def test_added_tokens_beside_gpt2_files(tmp_path):
    """Old folders keep them in added_tokens.json and special_tokens_map.json."""
    from transformers import GPT2Tokenizer
    byte_level_files(tmp_path, ["<|endoftext|>"])
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<new>": 701, "<pad>": 700}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(
        {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<pad>"}))
    fast = GPT2Tokenizer.from_pretrained(tmp_path)
    assert fast.convert_tokens_to_ids(["<pad>", "<new>"]) == [700, 701]
    texts = MATERIAL + random_texts(100) + ["a<new>b <pad> <|endoftext|>x", "<new><new> <pad"]
    assert_as_transformers(tmp_path, fast, texts)


@pytest.mark.parametrize("files, what", [
    ({"tokenizer_config.json": {"tokenizer_class": "Qwen2TokenizerFast"}}, "name the class Qwen2Tokenizer, which is not supported"),
    ({"added_tokens.json": {"<new>": 900}}, '"<new>" has id 900 in the files beside it, but the next free id is 700'),
    ({"added_tokens.json": {"a": 900}}, "but the vocabulary says"), ({"added_tokens.json": [1]}, "added_tokens.json: document: expected an object"),
    ({"tokenizer_config.json": {"added_tokens_decoder": {"x": {"content": "y"}}}}, '"x" is no token id'),
    ({"tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer"}}, 'the sep_token "</s>" is no token of it'),
    ({"special_tokens_map.json": {"eos_token": {"lstrip": True}}}, '"content" is missing'),
    ({"special_tokens_map.json": {"eos_token": 5}}, "special_tokens_map.json: eos_token")])
def test_refused_companions(tmp_path, files, what):
    byte_level_files(tmp_path, ["<|endoftext|>"])
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    done = subprocess.run([DRIVER, "encode", tmp_path / "vocab.json"], input=b"", capture_output=True)
    assert done.returncode == 2 and what in done.stderr.decode(), done.stderr


def train(kind, folder, vocab_size, threads=2, files=SOURCES):
    subprocess.run([DRIVER, f"train_{kind}", folder, str(vocab_size), str(threads), *files], check=True)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("kind, size", [("wordpiece", 3000), ("unigram", 2000)])
def test_trained(tmp_path, kind, size):
    """What is trained encodes here as there, and is the same for any number of threads."""
    oracle = train(kind, tmp_path / "a", size)
    assert oracle.get_vocab_size() == size
    train(kind, tmp_path / "b", size, threads=1)
    assert (tmp_path / "a/tokenizer.json").read_bytes() == (tmp_path / "b/tokenizer.json").read_bytes()
    assert_same(tmp_path / "a", oracle, MATERIAL + random_texts(200) + PROSE[:100],
                pairs=list(zip(MATERIAL, MATERIAL[2:])))


def test_wordpiece_is_as_good(tmp_path):
    """At most 0.5 % more tokens than the best of three vocabularies that Hugging Face's trainer makes."""
    ours = train("wordpiece", tmp_path / "ours", 4000)
    best = None
    for _ in range(3):
        theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        theirs.normalizer = normalizers.BertNormalizer()
        theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        theirs.train(SOURCES, trainers.WordPieceTrainer(vocab_size=4000, show_progress=False, limit_alphabet=1000,
                                                       special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
        count = sum(len(e.ids) for e in theirs.encode_batch(PROSE, add_special_tokens=False))
        best = min(count, best or count)
    assert sum(len(e.ids) for e in ours.encode_batch(PROSE, add_special_tokens=False)) <= 1.005 * best


def test_unigram_is_as_good(tmp_path):
    """Within 1 % of the tokens that SentencePiece's own training needs."""
    ours = train("unigram", tmp_path / "ours", 4000)
    model = io.BytesIO()
    lines = [line for p in SOURCES for line in pathlib.Path(p).read_text().splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=4000,
                                             normalization_rule_name="nfkc", minloglevel=2)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    count = sum(len(e.ids) for e in ours.encode_batch(lines, add_special_tokens=False))
    assert count <= 1.01 * sum(map(len, theirs.encode(lines)))
