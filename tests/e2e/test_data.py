"""Training on samples of every kind of text, chosen in the configuration; the same on any layout, refused where it changed."""

import json
import shutil

import pytest

from support import apart, latest, layout, losses, train, trireme

WORDS = [f"w{i}" for i in range(60)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    return path


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "p.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"w{i % 60} w{(i + 1) % 60}", "completion": " ".join(f"w{(i + k) % 60}" for k in range(2, 20))}) + "\n"
                            for i in range(200)))
    return path


KINDS = {
    "megatron": ["data.dataset={name: tokens, order: megatron}"],
    "resets": ["data.dataset={name: tokens, eod: 5, reset_position_ids: true, reset_attention_mask: true, eod_mask_loss: true}"],
    "lazy": ["data.dataset={name: tokens, access: lazy}"],
    "prefix_lm": ["data.dataset={name: prefix_lm}"],
    "synthetic": ["data.dataset={name: synthetic, samples: 50}", "data.train=[{}]"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_train_alike_on_any_layout(tiny, tmp_path, kind):
    train(tiny, tmp_path / "one", *layout(), *KINDS[kind], "train.train_iter=6")
    train(tiny, tmp_path / "many", *layout(dp=2, pp=2), *KINDS[kind], "train.train_iter=6")
    one, many = losses(tmp_path / "one"), losses(tmp_path / "many")
    assert len(one) == 6 and apart(list(one.values()), list(many.values())) < 1e-5


def test_fine_tuning(tiny, tmp_path, tokenizer, prompts):
    words = [f"tokenizer={tokenizer}", f"data.train=[{{path: {prompts}}}]", "data.dataset={name: sft, eod: 3}", "data.workers=2",
             "optim.lr=3.0e-3", "train.train_iter=12"]
    train(tiny, tmp_path / "run", *layout(), *words)
    drawn = losses(tmp_path / "run")
    assert drawn[12] < drawn[1] - 0.05
    refused = train(tiny, tmp_path / "other", *layout(), *words, "data.seq_length=8", code=2).stderr
    assert "p.jsonl:" in refused and "too_long: truncate" in refused


def test_a_resumed_run_keeps_its_samples(tiny, tmp_path):
    words = [*layout(), "train.checkpointer.period=3"]
    train(tiny, tmp_path / "run", *words, "data.dataset={name: prefix_lm}", "train.train_iter=6")
    first = losses(tmp_path / "run")
    checkpoints = latest(tmp_path / "run").parent
    shutil.rmtree(checkpoints / "step_00000006")
    (checkpoints / "latest").write_text("step_00000003")
    refused = train(tiny, tmp_path / "run", *words, "data.dataset={name: prefix_lm, min_prefix: 0.3}", "train.train_iter=6", "--resume", code=2).stderr
    assert "makes its samples otherwise" in refused
    train(tiny, tmp_path / "run", *words, "data.dataset={name: prefix_lm}", "train.train_iter=6", "--resume")
    assert losses(tmp_path / "run") == first


def test_the_last_batch(tiny, tmp_path):
    """17 samples in steps of 8: the last one alone, left out, or among others that count for nothing; one of two data ranks has
    none of its own then."""
    found = {}
    for last in ("shorter", "drop", "pad"):
        for ranks in (1, 2):
            run = tmp_path / f"{last}{ranks}"
            train(tiny, run, *layout(dp=ranks), "train.train_iter=null", "train.train_samples=17", f"data.last_batch={last}")
            found[last, ranks] = list(losses(run).values())
    for ranks in (1, 2):
        assert len(found["drop", ranks]) == 2 and len(found["pad", ranks]) == 3
        assert apart(found["pad", ranks], found["shorter", 1]) < 1e-5
        # A schedule of the learning rate knows the run's length, so the second step is another.
        assert found["drop", ranks][0] == found["shorter", ranks][0]
    refused = train(tiny, tmp_path / "none", *layout(), "train.train_iter=null", "train.train_samples=7", "data.last_batch=drop", code=2).stderr
    assert "leaves no step of 7 samples" in refused


def test_a_wrong_option_is_named(tiny, tmp_path):
    said = train(tiny, tmp_path / "run", *layout(), "data.dataset={name: tokens, reset_positions: true}", code=2).stderr
    assert "did you mean reset_position_ids?" in said
    said = train(tiny, tmp_path / "run", *layout(), "data.dataset={name: brt}", code=2).stderr
    assert "did you mean bert?" in said


def test_scores_of_files(tmp_path):
    """BLEU of a corpus as sacrebleu counts it, means over the lines, the best of several references; correlations."""
    def write(name, *lines):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        return tmp_path / name

    written = write("written", "the dog sat on my new rug", "The Tower")
    one, other = write("one", "the dog sat on my new rug", "a bridge"), write("other", "a cat", "tower!")
    scores = json.loads(trireme("score", written, one, other, "--json").stdout)
    assert scores["samples"] == 2 and scores["exact_match"] == 1 and scores["f1"] == 1
    assert scores["rouge1"] == pytest.approx((1 + 2 / 3) / 2)
    alone = json.loads(trireme("score", written, one, "--metrics", "exact_match,bleu", "--json").stdout)
    assert set(alone) == {"samples", "exact_match", "bleu"} and alone["exact_match"] == 0.5
    a, b = write("a", 1, 2, 2, 4, 7.5), write("b", 3, 1, 4, 4, 20)
    correlations = json.loads(trireme("score", a, b, "--metrics", "pearson,spearman", "--json").stdout)
    assert correlations["pearson"] == pytest.approx(0.9206007419111717) and correlations["spearman"] == pytest.approx(0.7631578947368421)
    for code, word, *arguments in ((2, "5 lines", written, a), (2, "is not a number", written, one, "--metrics", "pearson"),
                                   (2, "bleu", written, one, "--metrics", "blue"), (2, "not defined", a, write("same", 3, 3, 3, 3, 3), "--metrics", "spearman"),
                                   (4, "none", written, tmp_path / "none")):
        assert word in trireme("score", *arguments, code=code).stderr
