"""docs/tokenizers.md says what is supported: each name in its tables is tried."""

import json
import pathlib
import re
import subprocess

import pytest
import tokenizers
from text_pipeline_test import DECODERS, MODELS, NORMALIZERS, POST_PROCESSORS, PRE_TOKENIZERS, small
from text_import_test import byte_level_files, sentencepiece_model, tiktoken_file
from text_support import DRIVER, drive, package, save

HERE = pathlib.Path(__file__).parent
DOCS = (HERE.parents[1] / "docs/tokenizers.md").read_text()


def table(section):
    """The rows of a section's first table, as lists of cells."""
    text = DOCS.split(f"\n## {section}\n")[1]
    rows = re.search(r"(?:^\|.*\n)+", text, re.M).group().splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def types(stage):
    """The types of a stage and of the stages within."""
    if isinstance(stage, list):
        return set().union(*map(types, stage), set())
    if not isinstance(stage, dict):
        return set()
    own = {stage["type"]} if isinstance(stage.get("type"), str) else set()
    return own.union(*(types(value) for key, value in stage.items() if key != "pattern"), set())


SAMPLES = {"normalizer": (NORMALIZERS, {}), "pre_tokenizer": (PRE_TOKENIZERS, {"punctuation": tokenizers.pre_tokenizers.Punctuation}),
           "post_processor": (POST_PROCESSORS, {}), "decoder": (DECODERS, {})}
HUGGING_FACE = {"normalizer": (tokenizers.normalizers, "Normalizer"), "pre_tokenizer": (tokenizers.pre_tokenizers, "PreTokenizer"),
                "post_processor": (tokenizers.processors, "PostProcessor"), "decoder": (tokenizers.decoders, "Decoder")}


@pytest.mark.parametrize("stage", SAMPLES)
def test_stages(tmp_path, stage):
    """The table's names are all that Hugging Face's library has, all that the tests of stages try, and each loads."""
    said = set(names(next(row for row in table("Stages of tokenizer.json") if row[0] == stage)[1]))
    module, base = HUGGING_FACE[stage]
    base = getattr(module, base)
    assert said == {n for n in dir(module) if isinstance(getattr(module, n), type) and issubclass(getattr(module, n), base)} - {base.__name__}
    tried = set()
    plain = json.loads(small("wordlevel", None, tokenizers.pre_tokenizers.Whitespace(), ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]).to_str())
    samples, more = SAMPLES[stage]
    for make in (samples | more).values():
        if (part := make()) is None:
            continue
        document = plain | {stage: json.loads(part.__getstate__())}
        tried |= types(document[stage])
        (tmp_path / "tokenizer.json").write_text(json.dumps(document))
        assert len(drive("ids", tmp_path, ["a b"])) == 1
    assert tried == said


def test_models():
    row = next(row for row in table("Stages of tokenizer.json") if row[0] == "model")
    assert {n for n in names(row[1]) if n[0].isupper()} == {json.loads(small(m).to_str())["model"]["type"] for m in MODELS}


def test_files(tmp_path):
    """Each file of the table is read, and what is said to be written is."""
    rows = table("Files")
    said = {name: row for row in rows for name in names(row[0])}
    assert set(said) == {"tokenizer.json", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "vocab.txt", "tokenizer_config.json",
                         "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "spiece.model", "tokenizer.model",
                         "NAME.tiktoken"}
    assert all(row[1] == "yes" for row in rows)
    for row in rows:
        for test in names(row[3]):
            text = (HERE / test).read_text()
            assert any(name.replace("NAME", "") in text or name == "tokenizer.json" for name in names(row[0])), test
    for name in re.findall(r"`(text_\w+\.py)`", DOCS):
        assert (HERE / name).exists(), name
    made = {n: tmp_path / n for n in ("bpe", "wordpiece", "spiece", "tiktoken")}
    for folder in made.values():
        folder.mkdir()
    byte_level_files(made["bpe"], ["<|endoftext|>"])
    (made["wordpiece"] / "vocab.txt").write_text("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n")
    sentencepiece_model(made["spiece"])
    tiktoken_file(made["tiktoken"], "r50k_base.tiktoken", tokenizers.Regex("."))
    written = {}
    for kind, folder in made.items():
        source = folder / "r50k_base.tiktoken" if kind == "tiktoken" else folder
        subprocess.run([DRIVER, "save", source, folder / "out"], check=True)
        written[kind] = {p.name for p in (folder / "out").iterdir()}
    always = {name for name, row in said.items() if row[2] == "yes"}
    assert always == {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    of = {row[2]: set(names(row[0].split("(")[0])) for row in rows if row[2].startswith("of a")}
    assert written == {"bpe": always | of["of a byte-level BPE"], "wordpiece": always | of["of a WordPiece"], "spiece": always,
                       "tiktoken": always}  # its ids have holes, which vocab.json cannot have


def test_flags_of_training():
    program = (HERE.parents[1] / "tools/trireme/tokenizer.cc").read_text()
    for flag in re.findall(r"`(--[a-z-]+)`", DOCS):
        assert f'"{flag}"' in program, flag
