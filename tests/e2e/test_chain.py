"""From text to a generated continuation, each step with the files that the one before wrote."""

import json
import math
import pathlib
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from support import apart, json_lines, latest, layout, lines, losses, train, trireme

VOCAB = 700
LAYOUT = layout(dp=2, tp=2, pp=2)
CONSTANT = "train.scheduler.name=warmup_constant"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Python sources of the installed torch package, about 600 kB, with a last file that has no ASCII."""
    folder = tmp_path_factory.mktemp("text")
    size, names = 0, []
    for source in sorted((pathlib.Path(torch.__file__).parent / "nn").rglob("*.py")):
        content = source.read_bytes()
        names.append(folder / f"{len(names):03}.txt")
        names[-1].write_bytes(content)
        size += len(content)
        if size > 600_000:
            break
    names.append(folder / "other.txt")
    names[-1].write_text("Привет, 世界! 👩‍👩‍👧 e\u0301 \u00e9\n")
    return names


@pytest.fixture(scope="module")
def tokenizer(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    trireme("tokenizer", "train", "--type", "bpe", "--vocab-size", VOCAB, "--out", folder, *text)
    return folder


@pytest.fixture(scope="module")
def data(text, tokenizer, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("data") / "text"
    trireme("preprocess", "--tokenizer", tokenizer, "--input", *text, "--out", prefix, "--append-eod", "--split", "95,5")
    return prefix


@pytest.fixture(scope="module")
def config(tokenizer, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(json.dumps({
        "model": {"family": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 64, "vocab_size": VOCAB},
        "tokenizer": str(tokenizer),
        "data": {"train": [{"path": f"{data}_train"}], "valid": [{"path": f"{data}_valid"}], "seq_length": 64},
        "train": {"train_iter": 20, "train_micro_batch_size": 2, "num_accumulation_steps": 2,
                  "zero_optimization": {"enabled": True, "stage": 1}, "checkpointer": {"period": 10},
                  "evaluation": {"enabled": True, "eval_period": 10, "eval_iter": 4}},
        "optim": {"name": "adamw", "lr": 3e-3},
    }))
    return path


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(config, folder, *LAYOUT)
    return folder


@pytest.fixture(scope="module")
def merged(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("merged") / "hf"
    trireme("ckpt", "convert", latest(run), folder, "--to", "hf")
    return folder


def test_tokenizer_is_hugging_faces(text, tokenizer):
    theirs = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    assert theirs.get_vocab_size() == VOCAB
    for name in (text[0], text[-1]):
        ids = json_lines(trireme("tokenizer", "encode", "--tokenizer", tokenizer, "--file", name, "--json").stdout)
        content = name.read_text().split("\n")
        assert [line["ids"] for line in ids][:len(content) - 1] == [theirs.encode(line).ids for line in content[:-1]]


def test_run_learns_and_evaluates(run):
    drawn = losses(run)
    assert len(drawn) == 20
    assert abs(drawn[1] - math.log(VOCAB)) < 0.3 and drawn[20] < drawn[1] - 0.5
    evaluations = [line for line in lines(run) if "eval_loss" in line]
    assert [line["step"] for line in evaluations] == [10, 20]
    assert evaluations[1]["eval_loss"] < evaluations[0]["eval_loss"]
    assert (run / "config.yaml").exists() and list(run.glob("events.out.tfevents.*")) and list(run.glob("log.rank*.txt"))


def test_resolved_config_replays_the_run(run, tmp_path):
    train(run / "config.yaml", tmp_path, "--ranks", 8)
    assert losses(tmp_path) == losses(run)


@pytest.fixture(scope="module")
def straight(config, tmp_path_factory):
    """An undisturbed run, and the first half of one; constant learning rate, as a half has another length."""
    folder = tmp_path_factory.mktemp("straight")
    train(config, folder / "whole", *LAYOUT, CONSTANT)
    train(config, folder / "half", *LAYOUT, CONSTANT, "train.train_iter=10")
    return folder


def test_resume_is_bit_exact(config, straight, tmp_path):
    shutil.copytree(straight / "half", tmp_path / "run")
    train(config, tmp_path / "run", *LAYOUT, CONSTANT, "--resume")
    assert losses(tmp_path / "run") == losses(straight / "whole")
    diff = trireme("ckpt", "diff", latest(tmp_path / "run"), latest(straight / "whole"), "--json").stdout
    assert json.loads(diff)["equal"] and json.loads(diff)["max_abs"] == 0


def test_resume_on_one_rank(config, straight, tmp_path):
    shutil.copytree(straight / "half", tmp_path / "run")
    train(config, tmp_path / "run", *layout(), CONSTANT, "--resume", "train.num_accumulation_steps=4")
    drawn, want = losses(tmp_path / "run"), losses(straight / "whole")
    assert sorted(drawn) == sorted(want)
    assert apart(list(want.values()), list(drawn.values())) < 1e-4


def test_reshard_and_merge_hold_the_same_tensors(run, merged, tmp_path):
    one = tmp_path / "one"
    trireme("ckpt", "convert", latest(run), one, "--to", "split", "--tensor-parallel", 1, "--pipeline-parallel", 1)
    trireme("ckpt", "verify", one)
    trireme("ckpt", "diff", latest(run), one)
    trireme("ckpt", "convert", one, tmp_path / "hf", "--to", "hf")
    ours, again = load_file(merged / "model.safetensors"), load_file(tmp_path / "hf/model.safetensors")
    assert ours.keys() == again.keys() and all(torch.equal(ours[name], again[name]) for name in ours)


def test_eval_is_equal_on_every_layout(config, run):
    said = [json.loads(trireme("eval", "--config", config, "--checkpoint", latest(run), "--json",
                               *layout(dp, tp, pp)).stdout) for dp, tp, pp in ((1, 1, 1), (2, 1, 2), (1, 2, 1), (2, 2, 2), (1, 4, 1), (1, 2, 2))]
    assert len({line["tokens"] for line in said}) == 1
    assert apart([said[0]["loss"]] * 5, [line["loss"] for line in said[1:]]) < 1e-5
    assert abs(math.exp(said[0]["loss"]) / said[0]["perplexity"] - 1) < 1e-5


def test_transformers_loads_and_continues_as_we_do(merged):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(merged).eval(), AutoTokenizer.from_pretrained(merged)
    prompt = "def forward(self"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        want = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, ids.shape[1]:].tolist()
    for tp, pp in ((1, 1), (2, 2)):
        said = json_lines(trireme("generate", "--model", merged, "--prompt", prompt, "--max-new-tokens", 12, "--greedy",
                                  "--json", "--tensor-parallel", tp, "--pipeline-parallel", pp).stdout)[0]
        assert said["new_ids"] == want[:len(said["new_ids"])] and said["new_ids"]
        assert said["text"] == tokenizer.decode(said["new_ids"]) or said["text"] == prompt + tokenizer.decode(said["new_ids"])
