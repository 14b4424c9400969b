"""A random Hugging Face GPT-2 with an odd vocabulary: the same tokens as transformers, greedy and by beam search, on
every layout."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from support import PROGRAM, apart, json_lines, trireme

PROMPT = "the quick dog"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf")
    torch.manual_seed(5)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        ["the quick brown fox jumps over the lazy dog " * 20],
        trainers.BpeTrainer(vocab_size=280, special_tokens=["<|endoftext|>"],
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    vocab = tokenizer.get_vocab_size() + 3
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=40, n_head=2, n_positions=64, vocab_size=vocab,
                                      layer_norm_epsilon=1e-4, eos_token_id=vocab - 1, bos_token_id=vocab - 1)).eval()
    with torch.no_grad():
        for parameter in gpt2.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    gpt2.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    ids = torch.tensor([tokenizer.encode(PROMPT).ids])
    with torch.no_grad():
        tokens = gpt2.generate(ids, max_new_tokens=16, do_sample=False, pad_token_id=0)[0, ids.shape[1]:].tolist()
    return folder, tokens, vocab - 1


@pytest.mark.parametrize("tp,pp", [(1, 1), (2, 1), (1, 2), (2, 2), (1, 4)])
def test_greedy_tokens(model, tp, pp):
    folder, want, end = model
    said = trireme("generate", "--model", folder, "--prompt", PROMPT, "--max-new-tokens", 16, "--greedy", "--json",
                   "--tensor-parallel", tp, "--pipeline-parallel", pp).stdout
    got = json_lines(said)[0]["new_ids"]
    assert got == want or got == want[:want.index(end) + 1]


def test_ranks_as_processes(model):
    folder, want, end = model
    words = ["generate", "--model", folder, "--prompt", PROMPT, "--max-new-tokens", 16, "--greedy", "--json"]
    alone = trireme(*words).stdout
    assert trireme(*words, "--ranks", 2, "--tensor-parallel", 2).stdout == alone
    assert trireme("launch", "--nproc", 2, "--", PROGRAM, *words, "--pipeline-parallel", 2).stdout.endswith(alone)
    said = trireme(*words, "--ranks", 2, code=2).stderr
    assert said.count("error:") == 1 and "there are 2 ranks" in said and "--tensor-parallel 1" in said, said


@pytest.mark.parametrize("dtype,bound", [("bf16", 0.25), ("fp16", 0.03)])
def test_greedy_tokens_in_16_bits(model, dtype, bound):
    """Each token is the likeliest one, or one that in fp32 comes within the type's rounding of it."""
    folder, want, _ = model
    gpt2 = GPT2LMHeadModel.from_pretrained(folder).eval()
    ids = PreTrainedTokenizerFast.from_pretrained(folder)(PROMPT, return_tensors="pt").input_ids
    for tp, pp in ((1, 1), (2, 2)):
        said = trireme("generate", "--model", folder, "--prompt", PROMPT, "--max-new-tokens", 16, "--greedy", "--json",
                       "--dtype", dtype, "--tensor-parallel", tp, "--pipeline-parallel", pp).stdout
        got = json_lines(said)[0]["new_ids"]
        assert got[0] == want[0]
        with torch.no_grad():
            logits = gpt2(torch.cat([ids, torch.tensor([got])], 1)).logits[0, ids.shape[1] - 1:-1]
        chosen = logits.gather(1, torch.tensor(got).unsqueeze(1)).squeeze(1)
        assert (logits.max(1).values - chosen).max() < bound * logits.std(), (tp, pp)
    assert "--dtype" in trireme("generate", "--model", folder, "--prompt", PROMPT, "--dtype", "int8", code=2).stderr


@pytest.mark.parametrize("beams,penalty,early", [(3, 1.0, "false"), (4, 0.5, "true"), (2, 2.0, "never")])
def test_beam_search(model, tmp_path, beams, penalty, early):
    folder, greedy, _ = model
    shutil.copytree(folder, tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    config["eos_token_id"] = end = greedy[4]  # so that sequences end on the way
    (tmp_path / "hf/config.json").write_text(json.dumps(config))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        found = GPT2LMHeadModel.from_pretrained(folder).eval().generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, num_beams=beams,
            length_penalty=penalty, early_stopping={"false": False, "true": True}.get(early, early), eos_token_id=end,
            pad_token_id=end)
    want = found[0, ids.shape[1]:].tolist()
    want = want[:want.index(end) + 1] if end in want else want
    for tp, pp in ((1, 1), (2, 2)):
        said = trireme("generate", "--model", tmp_path / "hf", "--prompt", PROMPT, "--max-new-tokens", 12, "--json",
                       "--num-beams", beams, "--length-penalty", penalty, "--early-stopping", early,
                       "--tensor-parallel", tp, "--pipeline-parallel", pp).stdout
        assert json_lines(said)[0]["new_ids"] == want


def finetune(model, out, mesh, form, code=0, **options):
    program = pathlib.Path(PROGRAM).with_name("finetune")
    done = subprocess.run([program, model, out, *mesh, form], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == code, done.stderr
    return [float(line.split()[-1]) for line in done.stdout.splitlines()] if code == 0 else done.stderr


def test_one_call_splits_a_model_and_brings_it_back(model, tmp_path):
    """The same losses on every mesh; each form loads into transformers, and OSLO's split files into us."""
    folder, _, _ = model
    alone = finetune(folder, tmp_path / "one", "111", "safetensors")
    assert alone[-1] < alone[0] - 0.5
    for mesh, form in (("212", "bin"), ("122", "oslo"), ("411", "safetensors")):
        assert apart(finetune(folder, tmp_path / mesh, mesh, form), alone) < 1e-5
    want = GPT2LMHeadModel.from_pretrained(tmp_path / "one").state_dict()
    for mesh in ("212", "411"):
        for name, got in GPT2LMHeadModel.from_pretrained(tmp_path / mesh).state_dict().items():
            expected = want[name]
            if name.endswith("c_attn.bias"):  # keys' biases have no gradient but rounding, which AdamW makes steps of
                third = len(got) // 3
                got, expected = [torch.cat([t[:third], t[2 * third:]]) for t in (got, expected)]
            assert torch.allclose(got, expected, atol=1e-4), (mesh, name)
        PreTrainedTokenizerFast.from_pretrained(tmp_path / mesh)
    assert (tmp_path / "122/pytorch_model_tp=1_pp=0.bin").exists()
    trireme("ckpt", "convert", tmp_path / "122", tmp_path / "joined", "--to", "hf")
    assert apart(finetune(tmp_path / "122", tmp_path / "again", "211", "bin"),
                 finetune(tmp_path / "joined", tmp_path / "alike", "111", "bin")) < 1e-5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["122", "212", "411", "again", "alike", "joined", "one"]
    assert "is there already" in finetune(folder, tmp_path / "one", "111", "bin", code=2)


def test_a_downloaded_model_is_found_by_its_name(model, tmp_path):
    folder, tokens, end = model
    root = tmp_path / "hub/models--some--gpt2-tiny"
    shutil.copytree(folder, root / "snapshots/0123abc")
    (root / "refs").mkdir()
    (root / "refs/main").write_text("0123abc")
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub")}
    for name in ("some/gpt2-tiny", "some/gpt2-tiny@0123abc"):
        said = trireme("generate", "--model", name, "--prompt", PROMPT, "--max-new-tokens", 16, "--greedy", "--json", env=env)
        assert json_lines(said.stdout)[0]["new_ids"][0] == tokens[0]
    for name in ("some/other", "some/gpt2-tiny@v2"):
        refused = trireme("generate", "--model", name, "--prompt", PROMPT, env=env, code=2)
        assert "hf download some/" in refused.stderr
    assert "no such folder" in trireme("generate", "--model", "../nowhere", "--prompt", PROMPT, env=env, code=2).stderr
