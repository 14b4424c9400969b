"""Damaged and contradictory inputs: the program says what is wrong and exits with the code of its kind."""

import json
import os
import pathlib
import resource
import shutil
import signal

import pytest

from support import PROGRAM, config, latest, layout, learnable_data, losses, train, trireme, write_indexed


def refused(done, *words):
    """The error names each of the words; nothing but the error line was lost on the way."""
    assert "error" in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr, f"{word!r} is not in: {done.stderr}"
    assert "Traceback" not in done.stderr and "terminate called" not in done.stderr


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(tiny, folder, *layout(tp=2), "train.train_iter=2", "train.checkpointer.period=2")
    return folder


@pytest.fixture
def checkpoint(trained, tmp_path):
    """A copy to damage."""
    shutil.copytree(latest(trained), tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.mark.parametrize("ranks,override,words", [
    (1, "train.dist.tensor_paralel_size=2", ["tensor_paralel_size", "tensor_parallel_size"]),
    (3, "train.dist.tensor_parallel_size=3", ["3", "n_head"]),
    (5, "train.dist.pipeline_parallel_size=5", ["5", "4"]),
    (3, "train.dist.tensor_parallel_size=2", ["tensor_parallel_size", "3"]),
    (1, "train.num_accumulation_steps=3", ["global_batch_size"]),
    (1, "train.train_iter=many", ["train_iter", "many"]),
    (1, "model.family=gtp2", ["gtp2", "gpt2"]),
    (1, "model.n_embed=32", ["n_embed", "n_embd"]),
    (1, "model.head=masked_lm", ["model.head is \"masked_lm\"", "family gpt2", "choose one of: causal_lm, sequence_classification"]),
    (1, "optim.name=adm", ["adm", "adamw"]),
    (1, "data.seq_length=65", ["65", "64"]),
    (1, "model.vocab_size=50", ["50"]),
])
def test_configuration(tiny, tmp_path, ranks, override, words):
    refused(train(tiny, tmp_path / "run", "--ranks", ranks, override, code=2), *words)


def test_truncated_configuration(tiny, tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text(tiny.read_text()[:200])
    refused(train(broken, tmp_path / "run", code=2), "broken.yaml")


def test_usage():
    assert trireme("nonsense", code=2).stderr
    assert trireme("train", code=2).stderr


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
@pytest.mark.parametrize("damage", ["truncated", "garbled"])
def test_dataset(tmp_path, suffix, damage):
    data = learnable_data(tmp_path / "data", tokens=2000)
    path = pathlib.Path(data + suffix)
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[:len(content) // 2])
    else:
        path.write_bytes(b"\xff" * len(content))
    refused(train(config(tmp_path, data), tmp_path / "run", code=2), "data" + suffix if damage == "truncated" else "data")


def test_token_beyond_the_vocabulary(tmp_path):
    data = write_indexed(tmp_path / "data", [[1, 2, 3, 97] * 500])
    refused(train(config(tmp_path, data), tmp_path / "run", code=2), "97")


def test_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "BPE", "vo')
    refused(trireme("tokenizer", "encode", "--tokenizer", tmp_path, "--text", "x", code=2), "tokenizer.json")


def test_checkpoint_without_manifest(tiny, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (latest(run) / "trireme.json").unlink()
    refused(train(tiny, run, *layout(tp=2), "--resume", code=2), latest(run).name, "no complete checkpoint")
    refused(trireme("ckpt", "verify", latest(run), code=2), latest(run).name)


def test_damaged_tensors(checkpoint):
    trireme("ckpt", "verify", checkpoint)
    file = sorted(checkpoint.glob("*.safetensors"))[0]
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    refused(trireme("ckpt", "verify", checkpoint, code=2), file.name)
    file.write_bytes(content[:-8])
    refused(trireme("ckpt", "verify", checkpoint, code=2), file.name)
    content[7] = 0x7f  # a header of exabytes
    file.write_bytes(content)
    refused(trireme("ckpt", "convert", checkpoint, checkpoint.parent / "hf", "--to", "hf", code=2), file.name)
    assert not (checkpoint.parent / "hf/model.safetensors").exists()


def test_resume_with_another_model(tiny, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    refused(train(tiny, run, *layout(tp=2), "--resume", "model.n_embd=64", code=2), "64", "32")


@pytest.mark.parametrize("override,words", [
    ("model.n_head=2", ["n_head", "4"]),  # the same shapes, another model
    ("optim.name=sgd", ["sgd", "adamw"]),
    ("train.seed=4", ["seed", "3"]),
])
def test_resume_of_another_run(tiny, trained, tmp_path, override, words):
    shutil.copytree(trained, tmp_path / "run")
    refused(train(tiny, tmp_path / "run", *layout(), "--resume", "train.train_iter=4", override, code=2), *words)


def test_a_family_beside_weights_of_another(tiny, trained, tmp_path):
    words = [f"model={{pretrained: {latest(trained)}, family: llama}}", *layout()]
    refused(train(tiny, tmp_path / "run", *words, code=2), "model.family is llama", str(latest(trained)), "holds a model of family gpt2")
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_tokenizer(trained):
    refused(trireme("generate", "--model", latest(trained), "--prompt", "a", code=2), "no tokenizer here", "--tokenizer names one")


def test_resume_of_a_finished_run(tiny, trained):
    done = train(tiny, trained, *layout(tp=2), "train.train_iter=2", "--resume")
    assert "nothing left to do" in done.stdout
    said_once(train(tiny, trained, *layout(tp=2), "train.train_iter=1", "--resume", code=2),
              "the run ends after 1 step (train.train_iter), but")


def test_ranks_out_of_range(tiny, tmp_path):
    refused(train(tiny, tmp_path / "run", "--ranks", -2, code=2), "--ranks")


def test_disk_full_during_a_checkpoint(tiny, tmp_path):
    words = [*layout(), "train.checkpointer.period=2"]
    train(tiny, tmp_path / "run", *words, "train.train_iter=2", "train.scheduler.name=warmup_constant")
    before = latest(tmp_path / "run")

    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    words += ["train.train_iter=4", "train.scheduler.name=warmup_constant", "--resume"]
    refused(train(tiny, tmp_path / "run", *words, code=4, preexec_fn=small_files), str(tmp_path / "run"))
    assert latest(tmp_path / "run") == before
    trireme("ckpt", "verify", before)
    assert [entry.name for entry in (tmp_path / "run/checkpoints").iterdir() if entry.is_dir()] == [before.name]
    train(tiny, tmp_path / "run", *words)
    assert sorted(losses(tmp_path / "run")) == [1, 2, 3, 4]


def test_eval_without_validation_data(tiny, trained, tmp_path):
    keys = json.loads(tiny.read_text())
    keys["data"]["valid"] = []
    (tmp_path / "c.yaml").write_text(json.dumps(keys))
    refused(trireme("eval", "--config", tmp_path / "c.yaml", "--checkpoint", latest(trained), code=2), "valid")


def said_once(done, words):
    """The error is there once, whatever the number of ranks, and without their losses of one another."""
    refused(done, words)
    assert done.stderr.count("error:") == 1 and done.stderr.count(words) == 1, done.stderr
    for jargon in ("peer", "aborted", "rank 0", "gave up"):
        assert jargon not in done.stderr, done.stderr


def test_resume_in_other_data(tiny, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    keys = json.loads(tiny.read_text())
    words = [*layout(), "--resume", "train.train_iter=4", "train.scheduler.name=warmup_constant"]
    other = learnable_data(tmp_path / "other", seed=2)
    said_once(train(tiny, tmp_path / "run", *words, f"data.train.0.path={other}", code=2), "other documents")
    said_once(train(tiny, tmp_path / "run", *words, "data.seq_length=16", code=2), "data.seq_length is 16")
    for suffix in (".idx", ".bin"):  # moved, but the same
        shutil.copy(keys["data"]["train"][0]["path"] + suffix, tmp_path / f"moved{suffix}")
    done = train(tiny, tmp_path / "run", *words, f"data.train.0.path={tmp_path / 'moved'}")
    assert "the run now has 4 steps instead of 2" in done.stderr
    assert sorted(losses(tmp_path / "run")) == [1, 2, 3, 4]


def test_a_mistake_is_told_once(tiny, tmp_path):
    words = [*layout(tp=2, pp=2)]
    said_once(train(tiny, tmp_path / "run", *words, "data.train.0.path=none", code=2), "there is no file none.idx")
    said_once(train(tiny, tmp_path / "run", *words, "tokenizer=none", code=2), "tokenizer none")
    assert not (tmp_path / "run").exists()
    launched = trireme("launch", "--nproc", 4, "--", PROGRAM, "train", "--config", tiny, "model.n_embd=30",
                       f"train.output_dir={tmp_path / 'run'}", code=2)
    assert launched.stderr.count("n_embd") == 1 and "(all 4 ranks)" in launched.stderr, launched.stderr


def test_dry_run_opens_what_a_run_needs(tiny, tmp_path):
    words = [*layout(tp=2), "--dry-run"]
    done = train(tiny, tmp_path / "run", *words)
    assert "40000 tokens" in done.stdout and not (tmp_path / "run").exists()
    refused(train(tiny, tmp_path / "run", *words, "data.train.0.path=none", code=2), "none.idx", "trireme preprocess")
    refused(train(tiny, tmp_path / "run", *words, "tokenizer=none", code=2), "none", "tokenizer train")
    (tmp_path / "a.txt").write_text("abc" * 100)
    trireme("tokenizer", "train", "--type", "bpe", "--vocab-size", 260, "--out", tmp_path / "tokenizer", tmp_path / "a.txt")
    refused(train(tiny, tmp_path / "run", *words, f"tokenizer={tmp_path / 'tokenizer'}", code=2), "tokens", "97", "model.vocab_size")


def test_a_dataset_is_not_replaced(tmp_path):
    (tmp_path / "a.txt").write_text("abc" * 100)
    trireme("tokenizer", "train", "--type", "bpe", "--vocab-size", 257, "--out", tmp_path / "tokenizer", tmp_path / "a.txt")
    words = ["preprocess", "--tokenizer", tmp_path / "tokenizer", "--input", tmp_path / "a.txt", "--out", tmp_path / "d"]
    trireme(*words)
    refused(trireme(*words, code=2), "d.idx exists already", "--overwrite")
    trireme(*words, "--overwrite")
    refused(trireme("data", "merge", tmp_path / "d", "--out", tmp_path / "d", code=2), "--overwrite")
    refused(trireme(*words, "--split", "50,50", code=2), "gets no document")
    assert not list(tmp_path.glob("*.parts"))


def test_verify_sees_every_file(checkpoint):
    said = json.loads(trireme("ckpt", "verify", checkpoint, "--json").stdout)
    assert said["files"] >= 1 and not said["weights_only"]
    config_json = (checkpoint / "config.json").read_text()
    (checkpoint / "config.json").write_text(config_json.replace("4", "2", 1))
    refused(trireme("ckpt", "verify", checkpoint, code=2), "config.json", "checksum")
    (checkpoint / "config.json").write_text(config_json)
    for file in checkpoint.glob("optimizer*"):
        file.unlink()
    assert "note: the optimizer's files were left behind" in trireme("ckpt", "verify", checkpoint).stdout


def test_another_tokenizer_is_not_replaced(tmp_path):
    (tmp_path / "a.txt").write_text("abcabd" * 100)
    words = ["tokenizer", "train", "--out", tmp_path / "tokenizer", tmp_path / "a.txt", "--vocab-size"]
    trireme(*words, 258)
    before = (tmp_path / "tokenizer/tokenizer.json").read_text()
    assert "it is there already" in trireme(*words, 258).stdout
    refused(trireme(*words, 259, code=2), "tokenizer.json exists already", "--overwrite")
    assert (tmp_path / "tokenizer/tokenizer.json").read_text() == before
    assert "259 tokens" in trireme(*words, 259, "--overwrite").stdout


def test_beams_draw_nothing(tmp_path):
    refused(trireme("generate", "--model", tmp_path, "--prompt", "a", "--greedy", "--num-beams", 3, code=2), "--greedy")


def test_a_line_has_one_prefix(tiny, tmp_path):
    done = trireme("launch", "--nproc", 2, "--", PROGRAM, "train", "--config", tiny, f"train.output_dir={tmp_path / 'run'}",
                   "train.train_iter=1")
    assert "[rank 0] step 1/1" in done.stderr, done.stderr
    told = train(tiny, "/proc/nope", *layout(tp=2), code=4).stderr
    assert told.count("rank") == 1 and "/proc/nope" in told, told


def test_exit_codes(tiny, tmp_path):
    """One of each class that a user meets: 2 for configuration and files, 3 communication, 4 input and output."""
    trireme("ckpt", "inspect", tmp_path / "none", code=2)
    (tmp_path / "trireme.json").write_text("{")
    refused(trireme("ckpt", "inspect", tmp_path, code=2), "trireme.json:1:2: not valid JSON")
    lonely = dict(os.environ, RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    refused(train(tiny, tmp_path / "run", "train.dist.timeout_s=1", code=3, env=lonely), "127.0.0.1:1")
    (tmp_path / "file").write_text("")
    refused(train(tiny, tmp_path / "file/run", code=4), str(tmp_path / "file/run"))


def test_optimizers_schedules_and_groups(tiny, tmp_path):
    """A dry run draws the learning rate, groups are checked by name, and a run with frozen parameters resumes."""
    words = ["train.scheduler.name=wsd", "train.scheduler.decay_ratio=0.5", "train.train_iter=12"]
    drawn = trireme("train", "--config", tiny, "--dry-run", "--plot-lr", *words).stdout
    assert "learning rate, wsd, 12 steps" in drawn and "█" in drawn
    curve = json.loads(trireme("train", "--config", tiny, "--dry-run", "--plot-lr", "--json", *words).stdout)
    assert curve["steps"] == 12 and [p["step"] for p in curve["points"]] == list(range(1, 13))
    assert curve["points"][5]["lr"] == pytest.approx(1e-3) and curve["points"][11]["lr"] < 3e-4
    refused = trireme("train", "--config", tiny, "--dry-run", "optim.groups=[{pattern: nothing.*}]", code=2)
    assert "matches no parameter" in refused.stderr
    words = ["optim.name=muon", "optim.groups=[{pattern: '*.wpe.weight', freeze: true}]", "train.zero_optimization.stage=1",
             "train.scheduler.name=warmup_constant", "--ranks", 2]
    train(tiny, tmp_path / "whole", *words, "train.train_iter=4")
    train(tiny, tmp_path / "parts", *words, "train.train_iter=2")
    train(tiny, tmp_path / "parts", *words, "train.train_iter=4", "--resume")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
