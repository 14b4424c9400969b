"""Encoders, encoder-decoders and models of images from YAML on 2 x 2 x 2 ranks: training learns, resumes bit for bit, its
checkpoints are resharded, and the merged folder is transformers' own. A few in every run, all with TRIREME_FULL=1."""

import json
import math
import os
import shutil

import numpy
import pytest
import torch
import transformers
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from support import latest, layout, learnable_data, lines, losses, train, trireme

LAYOUT = [*layout(2, 2, 2), "train.dist.sequence_parallel=true"]
ENCODER = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 44, "vocab_size": 97,
           "max_position_embeddings": 40}


def text(folder, name, **options):
    data = learnable_data(folder / "data", vocab=80)
    return [{"path": data, "type": name, "options": options}]


def digits(folder):
    images, labels = load_digits(return_X_y=True)
    numpy.save(folder / "images.npy", (images.reshape(-1, 8, 8) * 15).astype(numpy.uint8))
    numpy.save(folder / "labels.npy", labels)
    return [{"path": str(folder / "images.npy"), "type": "images", "options": {"label_file": str(folder / "labels.npy"), "mean": [0.3], "std": [0.3]}}]


def masked(folder):
    return text(folder, "mlm", bos=90, eos=91, mask=92)


def spans(folder):
    return text(folder, "t5", sentinel=96, eos=1, pad=0)


def views(folder):
    sources = digits(folder)
    sources[0]["options"] |= {"views": 2, "size": 8, "random_resized_crop": True, "scale_min": 0.4}
    return sources


T5 = {"d_model": 32, "d_kv": 8, "d_ff": 44, "num_layers": 2, "num_heads": 4, "vocab_size": 97, "initializer_factor": 0.1}
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "vocab_size": 97, "max_position_embeddings": 40, "pad_token_id": 0, "decoder_start_token_id": 2}
VIT = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 44, "image_size": 8, "patch_size": 2,
       "num_channels": 1}
SWIN = {"image_size": 8, "patch_size": 1, "num_channels": 1, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
        "drop_path_rate": 0.1, "num_labels": 10}

# family: (keys, transformers' class or None, data, metric or None)
FAMILIES = {
    "bert": ({**ENCODER, "layer_norm_eps": 1e-6}, "BertForMaskedLM", masked, "accuracy"),
    "albert": ({**ENCODER, "embedding_size": 20}, "AlbertForMaskedLM", masked, "top5_accuracy"),
    "t5": (T5, "T5ForConditionalGeneration", spans, "accuracy"),
    "vit": ({**VIT, "num_labels": 10}, "ViTForImageClassification", digits, "macro_f1"),
}
OTHERS = {
    "megatron-bert": (ENCODER, "MegatronBertForMaskedLM", masked, "accuracy"),
    "roberta": (ENCODER, "RobertaForMaskedLM", masked, "accuracy"),
    "electra": ({**ENCODER, "embedding_size": 20}, "ElectraForMaskedLM", masked, "accuracy"),
    "distilbert": ({"dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 44, "vocab_size": 97, "max_position_embeddings": 40},
                   "DistilBertForMaskedLM", masked, "accuracy"),
    "mt5": (T5, "MT5ForConditionalGeneration", spans, "accuracy"),
    "bart": (BART, "BartForConditionalGeneration", spans, "accuracy"),
    "mbart": (BART, "MBartForConditionalGeneration", spans, "accuracy"),
    "blenderbot": (BART, "BlenderbotForConditionalGeneration", spans, "accuracy"),
    "blenderbot-small": (BART, "BlenderbotSmallForConditionalGeneration", spans, "accuracy"),
    "deit": ({**VIT, "num_labels": 10}, "DeiTForImageClassification", digits, "accuracy"),
    "vit_mae": ({**VIT, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 4,
                 "decoder_intermediate_size": 32}, "ViTMAEForPreTraining", digits, None),
    "moco_v3": ({**VIT, "projection_dim": 16, "mlp_dim": 32, "momentum_schedule": "constant"}, None, views, None),
    "swin": (SWIN, "SwinForImageClassification", digits, "accuracy"),
    "swinv2": (SWIN, "Swinv2ForImageClassification", digits, "accuracy"),
    "resmlp": ({"image_size": 8, "patch_size": 2, "num_channels": 1, "embed_dim": 32, "depth": 4, "mlp_ratio": 2.0, "num_labels": 10}, None,
               digits, "accuracy"),
}
if os.environ.get("TRIREME_FULL"):
    FAMILIES |= OTHERS


@pytest.fixture(scope="module", params=FAMILIES)
def run(request, tmp_path_factory):
    """A whole run and the first half of one, with the configuration."""
    folder = tmp_path_factory.mktemp(request.param)
    model, class_name, data, metric = FAMILIES[request.param]
    sources = data(folder)
    keys = {"model": {"family": request.param, **model}, "data": {"train": sources, "valid": sources, "seq_length": 32},
            "train": {"seed": 3, "train_iter": 16, "train_micro_batch_size": 4, "num_accumulation_steps": 2, "log_period": 1,
                      "checkpointer": {"period": 1000}, "evaluation": {"eval_period": 8, "eval_samples": 32, "metrics": [metric] if metric else []},
                      "scheduler": {"name": "warmup_constant", "warmup_ratio": 0}},
            "optim": {"name": "adamw", "lr": 5e-3, "clip_grad_max_norm": 1.0}}
    config = folder / "config.yaml"
    config.write_text(json.dumps(keys))
    train(config, folder / "whole", *LAYOUT)
    train(config, folder / "half", *LAYOUT, "train.train_iter=8")
    return folder, config, class_name, metric


def test_learns_and_evaluates(run):
    folder, config, _, metric = run
    measured = [line for line in lines(folder / "whole") if "eval_loss" in line]
    # MoCo's averages move on, and its loss with them: it is held to chance among a micro-batch's four rows.
    moving = json.loads(config.read_text())["model"]["family"] == "moco_v3"
    assert len(measured) == 2 and (metric is None or all(0 <= line[f"eval_{metric}"] <= 1 for line in measured))
    assert measured[1]["eval_loss"] < (math.log(4) if moving else measured[0]["eval_loss"])


def test_resume_is_bit_exact(run, tmp_path):
    folder, config, _, _ = run
    shutil.copytree(folder / "half", tmp_path / "run")
    train(config, tmp_path / "run", *LAYOUT, "--resume")
    assert losses(tmp_path / "run") == losses(folder / "whole")
    said = json.loads(trireme("ckpt", "diff", latest(tmp_path / "run"), latest(folder / "whole"), "--json").stdout)
    assert said["equal"] and said["max_abs"] == 0


def test_another_layout_reads_the_checkpoint(run, tmp_path):
    folder, config, _, _ = run
    trireme("ckpt", "convert", latest(folder / "whole"), tmp_path / "split", "--to", "split", "--tensor-parallel", 1, "--pipeline-parallel", 4)
    trireme("ckpt", "diff", latest(folder / "whole"), tmp_path / "split")
    # The same numbers go on elsewhere, but for their last bits.
    shutil.copytree(folder / "half", tmp_path / "run")
    train(config, tmp_path / "run", *layout(2, 1, 4), "train.train_iter=10", "--resume")
    want = losses(folder / "whole")
    assert all(abs(loss / want[step] - 1) < 1e-4 for step, loss in losses(tmp_path / "run").items())


def test_transformers_loads_the_merged_folder_bit_for_bit(run, tmp_path):
    folder, _, class_name, _ = run
    trireme("ckpt", "convert", latest(folder / "whole"), tmp_path / "hf", "--to", "hf")
    if class_name is None:
        return  # which transformers does not know
    ours = load_file(tmp_path / "hf/model.safetensors")
    model, said = getattr(transformers, class_name).from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not said["missing_keys"] and not said["unexpected_keys"] and not said["mismatched_keys"]
    # Under the names of files, whatever the class calls them.
    model.save_pretrained(tmp_path / "theirs")
    theirs = {name.replace("decoder_encoder.layer.", "decoder_layers."): tensor for name, tensor in load_file(tmp_path / "theirs/model.safetensors").items()}
    assert ours and ours.keys() == theirs.keys() and all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())
    # And we read what transformers has written.
    said = json.loads(trireme("ckpt", "diff", tmp_path / "hf", tmp_path / "theirs", "--json").stdout)
    assert said["equal"] and said["max_abs"] == 0


def test_one_rank_measures_what_eight_do(run):
    folder, config, _, metric = run
    want = [line for line in lines(folder / "whole") if "eval_loss" in line][-1]
    said = json.loads(trireme("eval", "--config", config, "--checkpoint", latest(folder / "whole"), "--json", *layout()).stdout)
    assert abs(said["loss"] / want["eval_loss"] - 1) < 1e-5


def test_the_processor_of_images_goes_along(tmp_path):
    """From the weights that a run begins with to its checkpoints, and through every conversion."""
    (tmp_path / "data").mkdir()
    model, _, data, _ = FAMILIES["vit"]
    sources = data(tmp_path / "data")
    keys = {"data": {"train": sources, "seq_length": 32}, "optim": {"lr": 1e-3},
            "train": {"train_iter": 1, "train_micro_batch_size": 4, "evaluation": {"enabled": False}, "checkpointer": {"period": 1}}}
    (tmp_path / "config.yaml").write_text(json.dumps(keys | {"model": {"family": "vit", **model}}))
    train(tmp_path / "config.yaml", tmp_path / "first")
    trireme("ckpt", "convert", latest(tmp_path / "first"), tmp_path / "base", "--to", "hf")
    settings = json.dumps({"do_normalize": True, "image_mean": [0.3], "image_std": [0.3], "image_processor_type": "ViTImageProcessor"})
    (tmp_path / "base/preprocessor_config.json").write_text(settings)
    train(tmp_path / "config.yaml", tmp_path / "run", f"model={{pretrained: {tmp_path / 'base'}}}", *layout(tp=2, pp=2))
    run = latest(tmp_path / "run")
    for to in ("hf", "bin", "split"):
        trireme("ckpt", "convert", run, tmp_path / to, "--to", to)
    trireme("ckpt", "convert", tmp_path / "split", tmp_path / "again", "--to", "hf")
    for folder in (run, *(tmp_path / name for name in ("hf", "bin", "split", "again"))):
        assert (folder / "preprocessor_config.json").read_text() == settings, folder
    assert list(transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf").image_mean) == [0.3]


def test_images_and_their_texts(tmp_path):
    """CLIP from YAML: each row's image with its own caption."""
    source = digits(tmp_path)[0]
    names = "zero one two three four five six seven eight nine".split()
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *names]) + "\n")
    (tmp_path / "captions.txt").write_text("".join(f"{names[label]}\n" for label in numpy.load(tmp_path / "labels.npy")))
    source["options"] |= {"caption_file": str(tmp_path / "captions.txt")}
    tower = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 44}
    keys = {"model": {"family": "clip", "projection_dim": 16,
                      "text_config": tower | {"vocab_size": 20, "max_position_embeddings": 8, "eos_token_id": 3},
                      "vision_config": tower | {"image_size": 8, "patch_size": 2, "num_channels": 1}},
            "tokenizer": str(tmp_path / "vocab.txt"), "data": {"train": [source], "valid": [source], "seq_length": 6},
            "train": {"train_iter": 12, "train_micro_batch_size": 8, "log_period": 1, "scheduler": {"name": "warmup_constant", "warmup_ratio": 0}},
            "optim": {"lr": 3e-3}}
    (tmp_path / "config.yaml").write_text(json.dumps(keys))
    train(tmp_path / "config.yaml", tmp_path / "run", *layout(2, 2, 2))
    curve = losses(tmp_path / "run")
    assert curve[12] < curve[1]
    trireme("ckpt", "convert", latest(tmp_path / "run"), tmp_path / "hf", "--to", "hf")
    _, said = transformers.CLIPModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not said["missing_keys"] and not said["unexpected_keys"]


@pytest.mark.parametrize("run", ["bert"], indirect=True)
def test_tokens_are_no_labels_of_replaced_ones(run, tmp_path):
    _, config, _, _ = run
    keys = json.loads(config.read_text())
    keys["model"] = {"family": "electra", "head": "pretraining", **ENCODER}
    (tmp_path / "config.yaml").write_text(json.dumps(keys))
    said = train(tmp_path / "config.yaml", tmp_path / "run", *LAYOUT, code=2).stderr
    assert "labels 0" in said and "masked_lm" in said


@pytest.mark.parametrize("run", ["bert"], indirect=True)
def test_another_head_takes_over_the_encoder(run, tmp_path):
    folder, config, _, _ = run
    trireme("ckpt", "convert", latest(folder / "whole"), tmp_path / "hf", "--to", "hf")
    keys = json.loads(config.read_text())
    keys["model"] = {"pretrained": str(tmp_path / "hf"), "head": "token_classification", "num_labels": 97}
    (tmp_path / "config.yaml").write_text(json.dumps(keys))
    said = train(tmp_path / "config.yaml", tmp_path / "run", *LAYOUT, "train.train_iter=2")
    assert "the others start anew" in said.stderr + said.stdout and "classifier.weight" in said.stderr + said.stdout
    assert json.loads((latest(tmp_path / "run") / "config.json").read_text())["architectures"] == ["BertForTokenClassification"]
