"""Families of decoders from YAML: trained on 2 x 2 x 2, resumed, merged, reloaded in transformers, continued. A few in
every run, all with TRIREME_FULL=1."""

import json
import os
import pathlib
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from support import apart, json_lines, latest, layout, learnable_data, lines, losses, train, trireme

VOCAB = 257
LLAMA = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=44,
             max_position_embeddings=64, pad_token_id=None)
MOE = dict(num_experts_per_tok=2, output_router_logits=True)
FAMILIES = {
    "gpt2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, layer_norm_epsilon=1e-4),
    "gpt_neo": dict(hidden_size=32, num_layers=2, num_heads=4, max_position_embeddings=64, attention_types=[[["global", "local"], 1]],
                    window_size=8),
    "gptj": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4),
    "gpt_neox": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=44, max_position_embeddings=64),
    "opt": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=44, max_position_embeddings=64),
    "bloom": dict(hidden_size=32, n_layer=2, n_head=4),
    "llama": LLAMA | dict(rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                        "original_max_position_embeddings": 32}, rope_theta=5000.0),
    "mistral": LLAMA | dict(sliding_window=8),
    "qwen2": LLAMA | dict(tie_word_embeddings=True),
    "qwen3": LLAMA | dict(head_dim=16),
    "gemma2": LLAMA | dict(head_dim=16, sliding_window=8, pad_token_id=0),
    "gemma3_text": LLAMA | dict(head_dim=16, sliding_window=8, sliding_window_pattern=2, pad_token_id=0),
    "phi3": LLAMA,
    "mixtral": LLAMA | MOE | dict(num_local_experts=4),
    "qwen3_moe": LLAMA | MOE | dict(head_dim=16, num_experts=4, moe_intermediate_size=20),
}
CHOSEN = list(FAMILIES) if os.environ.get("TRIREME_FULL") else ["gpt_neox", "gemma3_text", "mixtral"]
PROMPT = "the quick dog"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Of bytes alone, and an end token."""
    folder = tmp_path_factory.mktemp("tokenizer")
    vocab = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))} | {"<|endoftext|>": 256}
    made = Tokenizer(models.BPE(vocab, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return learnable_data(tmp_path_factory.mktemp("data") / "data", vocab=VOCAB)


def write_config(folder, family, data, tokenizer):
    path = folder / "config.yaml"
    path.write_text(json.dumps({
        "model": {"family": family, "vocab_size": VOCAB, "bos_token_id": 256, "eos_token_id": 256} | FAMILIES[family],
        "tokenizer": str(tokenizer),
        "data": {"train": [{"path": data}], "seq_length": 24},
        "train": {"train_iter": 4, "train_micro_batch_size": 1, "global_batch_size": 4, "checkpointer": {"period": 2},
                  "evaluation": {"enabled": False}, "scheduler": {"name": "warmup_constant"}},
        "optim": {"lr": 1e-2, "eps": 1e-4}}))
    return path


@pytest.mark.parametrize("family", CHOSEN)
def test_family(family, data, tokenizer, tmp_path):
    config, run, again, merged = write_config(tmp_path, family, data, tokenizer), tmp_path / "run", tmp_path / "again", tmp_path / "hf"
    train(config, run, *layout(2, 2, 2))
    whole = losses(run)
    assert len(whole) == 4

    shutil.copytree(run, again)
    (again / "checkpoints/latest").write_text("step_00000002\n")
    shutil.rmtree(again / "checkpoints/step_00000004")
    train(config, again, *layout(2, 2, 2), "--resume")
    assert losses(again) == whole
    trireme("ckpt", "diff", latest(run), latest(again))

    trireme("ckpt", "convert", latest(run), merged, "--to", "hf")
    model, facts = AutoModelForCausalLM.from_pretrained(merged, output_loading_info=True)
    assert not any(facts[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    # What transformers read is what is there, bit for bit: it writes the same file.
    model.save_pretrained(tmp_path / "back")
    ours, theirs = load_file(merged / "model.safetensors"), load_file(tmp_path / "back/model.safetensors")
    theirs = {"embed_out.weight" if family == "gpt_neox" and k == "lm_head.weight" else k: v for k, v in theirs.items()}
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)

    ids = AutoTokenizer.from_pretrained(merged)(PROMPT, return_tensors="pt").input_ids
    want = model.eval().generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=256)
    want = want[0, ids.shape[1]:].tolist()
    said = trireme("generate", "--model", merged, "--prompt", PROMPT, "--max-new-tokens", 12, "--greedy", "--json",
                   "--tensor-parallel", 2, "--pipeline-parallel", 2).stdout
    assert json_lines(said)[0]["new_ids"] == want


def table(path, rows):
    path.write_text("text\ttopic\n" + "".join(f"{text}\t{topic}\n" for text, topic in rows))
    return str(path)


def stories(folder):
    """Texts of several lengths whose last word says what they are about."""
    rows = [(" ".join(["so"] * (i % 5 + 1) + [word]), word) for i in range(40) for word in ("art", "law", "sport")]
    return [{"path": table(folder / "stories.tsv", rows), "type": "classification",
             "options": {"text": "text", "label": "topic", "labels": ["art", "law", "sport"], "pad": 256}}]


def questions(folder):
    texts = [f"it was {where} that he went" for where in ("there", "home", "away")]
    data = [{"title": "t", "paragraphs": [{"context": text, "qas": [
        {"id": str(i), "question": "where", "answers": [{"text": text.split()[2], "answer_start": 7}]}]}]} for i, text in enumerate(texts * 20)]
    path = folder / "questions.json"
    path.write_text(json.dumps({"version": "2", "data": data}))
    return [{"path": str(path), "type": "squad", "options": {"pad": 256}}]


# Each token's class is the token itself, which a decoder can see too.
ITSELF = {"bos": 0, "eos": 1, "mask": 2, "masked_lm_prob": 0.8, "mask_share": 0, "random_share": 0}

# (family, head, class, data): each head, on families whose classes call their parts otherwise.
UNDER_HEADS = [("gpt2", "sequence_classification", "GPT2ForSequenceClassification", stories),
               ("llama", "question_answering", "LlamaForQuestionAnswering", questions),
               ("mixtral", "sequence_classification", "MixtralForSequenceClassification", stories),
               ("gemma3_text", "sequence_classification", "Gemma3TextForSequenceClassification", stories),
               ("bloom", "token_classification", "BloomForTokenClassification", None),
               ("opt", "question_answering", "OPTForQuestionAnswering", questions)]


@pytest.mark.parametrize("family,head,class_name,sources", UNDER_HEADS if os.environ.get("TRIREME_FULL") else UNDER_HEADS[:2])
def test_another_head(family, head, class_name, sources, data, tokenizer, tmp_path):
    """Trained on 2 x 2 x 2, resumed bit for bit, learns, and its folder is that of transformers' class."""
    config, run, again, merged = write_config(tmp_path, family, data, tokenizer), tmp_path / "run", tmp_path / "again", tmp_path / "hf"
    keys = json.loads(config.read_text())
    keys["model"] |= {"head": head, "pad_token_id": 256, "num_labels": VOCAB if sources is None else 3, "output_router_logits": False}
    if family not in ("mixtral",):
        del keys["model"]["output_router_logits"]
    keys["data"]["train"] = sources(tmp_path) if sources else [{"path": data, "type": "mlm", "options": ITSELF}]
    keys["train"] |= {"train_iter": 12, "checkpointer": {"period": 6}}
    keys["data"]["seq_length"] = 40
    config.write_text(json.dumps(keys))
    train(config, run, *layout(2, 2, 2))
    whole = losses(run)
    assert min(whole[i] for i in (10, 11, 12)) < whole[1]

    shutil.copytree(run, again)
    (again / "checkpoints/latest").write_text("step_00000006\n")
    shutil.rmtree(again / "checkpoints/step_00000012")
    train(config, again, *layout(2, 2, 2), "--resume")
    assert losses(again) == whole
    trireme("ckpt", "diff", latest(run), latest(again))

    trireme("ckpt", "convert", latest(run), merged, "--to", "hf")
    model, facts = getattr(transformers, class_name).from_pretrained(merged, output_loading_info=True)
    assert not any(facts[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert json.loads((merged / "config.json").read_text())["architectures"] == [class_name]
    model.save_pretrained(tmp_path / "back")
    ours, theirs = load_file(merged / "model.safetensors"), load_file(tmp_path / "back/model.safetensors")
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    # And back: the folder of transformers begins a run of its own.
    keys["model"] = {"pretrained": str(tmp_path / "back"), "head": head}
    config.write_text(json.dumps(keys))
    train(config, tmp_path / "on", *layout(1, 2, 1), "train.train_iter=1", "train.global_batch_size=4")
    assert losses(tmp_path / "on")[1] < whole[1]


def test_padding_that_a_classifier_does_not_know(data, tokenizer, tmp_path):
    config = write_config(tmp_path, "llama", data, tokenizer)
    keys = json.loads(config.read_text())
    keys["model"] |= {"head": "sequence_classification", "num_labels": 3}
    keys["data"]["train"] = stories(tmp_path)
    config.write_text(json.dumps(keys))
    assert "model.pad_token_id is not given" in train(config, tmp_path / "run", *layout(), code=2).stderr
    said = train(config, tmp_path / "run", *layout(), "model.pad_token_id=7", code=2).stderr
    assert "filled up with another token than 7" in said and "option pad" in said


def distance(a, b):
    """The largest difference of any weight of two merged folders."""
    a, b = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


def norms(run):
    return [line["grad_norm"] for line in lines(run) if "loss" in line]


# The last step has rows for one data rank alone, as has the last batch of an evaluation.
SHARED_OUT = ["train.train_iter=null", "train.train_samples=13", "train.dist.expert_parallel=dp", "train.evaluation.enabled=true",
              "train.evaluation.eval_period=2", "train.evaluation.eval_samples=5", "optim.clip_grad_max_norm=0.1"]


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"] if os.environ.get("TRIREME_FULL") else ["qwen3_moe"])
def test_experts_on_data_ranks(family, data, tokenizer, tmp_path):
    config = write_config(tmp_path, family, data, tokenizer)
    keys = json.loads(config.read_text())
    # A balance loss is of a data rank's micro-batch: one rank would have another. Three experts do not divide.
    keys["model"] |= {"output_router_logits": False, "num_local_experts" if family == "mixtral" else "num_experts": 3}
    keys["data"]["valid"] = keys["data"]["train"]
    config.write_text(json.dumps(keys))

    def merged(run):
        trireme("ckpt", "convert", latest(run), run.with_suffix(".hf"), "--to", "hf")
        return run.with_suffix(".hf")

    one = tmp_path / "one"
    train(config, one, *SHARED_OUT)
    want = merged(one)
    evaluated = [line["eval_loss"] for line in lines(one) if "eval_loss" in line]
    for name, where, words in [("two", layout(2), []), ("zero3", layout(2), ["train.zero_optimization.stage=3"]),
                               ("recomputed", layout(2), ["train.zero_optimization.stage=1", "train.activation_checkpoint.enabled=true"]),
                               ("all", layout(2, 2, 2), ["train.zero_optimization.stage=2", "train.dist.sequence_parallel=true"])]:
        run = tmp_path / name
        train(config, run, *where, *SHARED_OUT, *words)
        assert apart(list(losses(run).values()), list(losses(one).values())) < 1e-5, name
        assert apart([line["eval_loss"] for line in lines(run) if "eval_loss" in line], evaluated) < 1e-5, name
        assert apart(norms(run), norms(one)) < 1e-5, name
        assert distance(merged(run), want) < 1e-4, name

    # A run goes on with experts on tensor ranks, on another layout.
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "zero3", again)
    (again / "checkpoints/latest").write_text("step_00000002\n")
    shutil.rmtree(again / "checkpoints/step_00000004")
    train(config, again, *layout(1, 2, 1), *SHARED_OUT, "train.dist.expert_parallel=tp", "--resume")
    assert distance(merged(again), want) < 1e-4

    shown = trireme("inspect", "--config", config, "--json", *layout(2)[2:], "--ranks", 2, "train.dist.expert_parallel=dp").stdout
    places = {entry["name"]: entry["dp"] for entry in json.loads(shown)["parameters"]}
    homes = {place for name, place in places.items() if ".experts." in name}
    assert homes == {"rank 0", "rank 1"} and all(place == "replicated" for name, place in places.items() if ".experts." not in name)


REFUSED = {
    "heads that tp does not divide": ("llama", dict(num_attention_heads=3, num_key_value_heads=3, hidden_size=33), ["3", "tensor_parallel_size"]),
    "key heads beside tp": ("llama", dict(num_attention_heads=6, num_key_value_heads=3, hidden_size=36), ["num_key_value_heads 3"]),
    "key heads of no group": ("llama", dict(num_key_value_heads=3), ["num_key_value_heads 3", "num_attention_heads 4"]),
    "width": ("opt", dict(hidden_size=30), ["hidden_size 30", "num_attention_heads 4"]),
    "activation": ("llama", dict(hidden_act="gleu"), ["gleu", "gelu"]),
    "rope type": ("llama", dict(rope_scaling={"rope_type": "spiral", "factor": 2.0}), ["spiral", "yarn"]),
    "rope key": ("llama", dict(rope_scaling={"rope_type": "linear", "factr": 2.0}), ["factor"]),
    "rope factor": ("llama", dict(rope_scaling={"type": "linear"}), ["factor", "linear"]),
    "nearest key": ("qwen3", dict(num_key_value_head=2), ["num_key_value_head", "num_key_value_heads"]),
    "layer types": ("gemma3_text", dict(layer_types=["sliding_attention"]), ["layer_types", "2"]),
    "attention types": ("gpt_neo", dict(attention_types=[[["global"], 3]]), ["attention_types", "2"]),
    "experts": ("mixtral", dict(num_experts_per_tok=9), ["9", "4"]),
    "rotary": ("gptj", dict(rotary_dim=12), ["rotary_dim", "8"]),
    "family": ("lama", {}, ["lama", "llama"]),
}


@pytest.mark.parametrize("family, words, said", [
    ("llama", layout(2), ["expert_parallel", "no experts"]),
    ("mixtral", [*layout(2), "model.num_local_experts=1", "model.num_experts_per_tok=1"], ["2 data ranks", "1 experts"]),
    ("mixtral", [*layout(2), "optim.name=lamb", "train.zero_optimization.stage=1"], ["lamb", "expert_parallel", "ZeRO"]),
    ("mixtral", [*layout(2), "train.dist.expert_parallel=pp"], ["expert_parallel", "pp"]),
])
def test_experts_that_data_ranks_cannot_share_out(family, words, said, data, tokenizer, tmp_path):
    config = write_config(tmp_path, family, data, tokenizer)
    error = train(config, tmp_path / "run", "train.dist.expert_parallel=dp", *words, code=2).stderr
    assert all(word in error for word in said), error


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, data, tokenizer, tmp_path):
    family, overrides, words = REFUSED[case]
    config = write_config(tmp_path, family if family in FAMILIES else "llama", data, tokenizer)
    keys = json.loads(config.read_text())
    keys["model"] |= overrides | {"family": family}
    config.write_text(json.dumps(keys))
    said = train(config, tmp_path / "run", *layout(tp=2), code=2).stderr
    assert all(word in said for word in words), said


@pytest.mark.parametrize("model,words", [
    ({"family": "t5", "d_model": 16, "d_kv": 8, "num_heads": 2, "num_layers": 2, "d_ff": 32}, ["family t5", "decoder_input_ids"]),
    ({"family": "bert", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32}, ["family bert", "attention_mask"]),
    ({"family": "bert", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32,
      "head": "sequence_classification"}, ["head sequence_classification", "labels of 0 dimensions", "labels ["]),
    ({"family": "vit", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32, "image_size": 8,
      "patch_size": 4}, ["family vit", "pixel_values"])])
def test_samples_of_another_kind(model, words, data, tokenizer, tmp_path):
    config = write_config(tmp_path, "llama", data, tokenizer)
    keys = json.loads(config.read_text())
    keys["model"] = model | ({"vocab_size": keys["model"]["vocab_size"]} if model["family"] != "vit" else {})
    config.write_text(json.dumps(keys))
    said = train(config, tmp_path / "run", *layout(), code=2).stderr
    assert all(word in said for word in [*words, "data.dataset"]), said


def test_the_table_as_json():
    rows = json.loads(trireme("models", "--json").stdout)
    assert {"family": "gpt2", "architecture": "GPT2LMHeadModel", "pipeline_parallel": "yes"}.items() <= rows[0].items()
    assert rows[0]["heads"].split(", ")[0] == "causal LM"
    assert all(key.isidentifier() and key == key.lower() for row in rows for key in row)


@pytest.mark.parametrize("page", ["README.md", "docs/models.md"])
def test_pages_hold_the_table(page):
    assert trireme("models", "--markdown").stdout in (pathlib.Path(__file__).resolve().parents[2] / page).read_text()
