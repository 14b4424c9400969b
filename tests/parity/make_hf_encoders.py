"""Encoders, encoder-decoders and models of images for hf_families_test.cc: one small random model of each, with uneven sizes."""
import copy
import json
import math
import pathlib
import re
import sys
import types

import torch
import transformers as hf

import hf_case

VOCAB, ROWS, SEQ, PAD = 131, 6, 11, 3


def tokens(rows=ROWS, seq=SEQ, padding=True):
    """Ids, the mask that leaves out the padding of some rows, and two kinds of tokens."""
    ids = torch.randint(4, VOCAB, (rows, seq))
    mask = torch.ones_like(ids)
    if padding:
        for row in range(rows):
            mask[row, seq - row % 4 :] = 0 if row % 4 else 1
    ids = torch.where(mask.bool(), ids, PAD)
    kinds = (torch.arange(seq) > seq // 3).long().expand(rows, seq).contiguous()
    return ids, mask, kinds


def encoder(root, name, model, head, *, kinds=True, end=None, **facts):
    """A model of `transformers` under one head; the loss is the one that transformers itself gives. `end`: the id that each
    row ends with."""
    hf_case.randomize(model)
    rows = ROWS * 2 if head == "multiple_choice" else ROWS
    ids, mask, types = tokens(rows)
    if end is not None:
        ids[torch.arange(rows), mask.sum(1) - 1] = end
    inputs = {"input_ids": ids, "attention_mask": mask}
    if kinds:
        inputs["token_type_ids"] = types
    labels = {}
    dtype = next(model.parameters()).dtype
    if head in ("masked_lm", "pretraining", "token_classification"):
        classes = {"token_classification": 5}.get(head, VOCAB)
        labels["labels"] = hf_case.uneven_labels(torch.randint(0, classes, ids.shape), causal=False)
    if head == "pretraining":
        key = "sentence_order_label" if model.config.model_type == "albert" else "next_sentence_label"
        labels[key] = torch.tensor([0, 1, 1, -100, 0, 1])
    if head == "replaced":
        labels["labels"] = torch.randint(0, 2, ids.shape)
    if head == "sequence_classification":
        labels["labels"] = torch.randint(0, model.config.num_labels, (ROWS,))
    if head == "regression":
        labels["labels"] = torch.randn(ROWS, dtype=dtype)
    if head == "multi_label":
        labels["labels"] = torch.randint(0, 2, (ROWS, model.config.num_labels)).to(dtype)
    if head == "multiple_choice":
        inputs = {k: v.view(ROWS, 2, SEQ) for k, v in inputs.items()}
        labels["labels"] = torch.tensor([0, 1, 1, 0, 1, 0])
    if head == "question_answering":
        labels["start_positions"] = torch.tensor([0, 3, SEQ, 2, 5, 1])  # one lies outside of its row
        labels["end_positions"] = torch.tensor([2, 4, SEQ, 6, 5, SEQ + 2])

    def run(model, inputs):
        out = model(**inputs)
        if head == "pretraining":
            second = out.sop_logits if model.config.model_type == "albert" else out.seq_relationship_logits
            return out.loss, {"logits": out.prediction_logits, "relationship": second}
        if head == "question_answering":
            return out.loss, {"scores": torch.stack([out.start_logits, out.end_logits], -1)}
        if head == "masked_lm":
            return out.loss, {"logits": out.logits}
        return out.loss, {"scores": out.logits.unsqueeze(-1) if head == "replaced" else out.logits}

    hf_case.write(root, name, model, inputs | labels, run, **facts)


SMALL = dict(vocab_size=VOCAB, pad_token_id=PAD, num_hidden_layers=4, num_attention_heads=4, hidden_size=32,
             intermediate_size=44, max_position_embeddings=24, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
             classifier_dropout=0, layer_norm_eps=1e-4)
HEADS = [("masked_lm", "MaskedLM", {}), ("sequence_classification", "SequenceClassification", dict(num_labels=5)),
         ("token_classification", "TokenClassification", dict(num_labels=5)), ("multiple_choice", "MultipleChoice", {}),
         ("question_answering", "QuestionAnswering", {})]


def bert_like(root, family, config_class, prefix, more, heads, sizes=SMALL, bounds={}, bare=None, **facts):
    """`bare`: what the parameters of the model without a head begin with; None: no case of it."""
    for number, (head, suffix, overrides) in enumerate(heads):
        model = getattr(hf, f"{prefix}For{suffix}")(config_class(**sizes, **more, **overrides)).double()
        # The block is the same under every head: one of them runs on all layouts.
        encoder(root, f"{family}_{head}_fp64", model, head, blocks=4, tp=[1, 2, 4], layouts="few" if number else "all",
                bound=bounds.get(head), **facts)
    if bare:
        model = getattr(hf, f"{prefix}Model")(config_class(**sizes, **more)).double()
        vectors(root, f"{family}_embedding_fp64", model, bare, pooling="cls", ignore=["pooler."], blocks=4)
    # The same in fp32, where gradients that are zero in theory are what rounding makes of them.
    head, suffix, overrides = heads[0]
    model = getattr(hf, f"{prefix}For{suffix}")(config_class(**sizes, **more, **overrides))
    encoder(root, f"{family}_{head}_fp32", model, head, blocks=4, tp=[1, 2, 4], layouts="few", zero=["key.bias", "k_lin.bias"], **facts)


def bert(root):
    more = dict(hidden_act="relu", type_vocab_size=2)
    heads = HEADS + [("pretraining", "PreTraining", {}), ("regression", "SequenceClassification", dict(num_labels=1)),
                     ("multi_label", "SequenceClassification", dict(num_labels=3, problem_type="multi_label_classification"))]
    bert_like(root, "bert", hf.BertConfig, "Bert", more, heads, bare="bert.")
    bert_like(root, "bert_untied", hf.BertConfig, "Bert", dict(hidden_act="gelu_new", tie_word_embeddings=False), HEADS[:1],
              ignore=["cls.predictions.bias"])


def megatron_bert(root):
    bert_like(root, "megatron_bert", hf.MegatronBertConfig, "MegatronBert", dict(type_vocab_size=2),
              HEADS + [("pretraining", "PreTraining", {})], bare="bert.")


def roberta(root):
    bert_like(root, "roberta", hf.RobertaConfig, "Roberta", dict(type_vocab_size=2), HEADS, bare="roberta.")


def electra(root):
    bert_like(root, "electra", hf.ElectraConfig, "Electra", dict(embedding_size=20, summary_last_dropout=0),
              HEADS + [("replaced", "PreTraining", {})], bounds={"replaced": 1e-7}, bare="electra.")  # whose loss is made in fp32


def albert(root):
    sizes = {k: v for k, v in SMALL.items() if k != "classifier_dropout"} | dict(classifier_dropout_prob=0, embedding_size=20)
    bert_like(root, "albert", hf.AlbertConfig, "Albert", {}, HEADS + [("pretraining", "PreTraining", {})], sizes, bare="albert.")
    bert_like(root, "albert_groups", hf.AlbertConfig, "Albert", dict(num_hidden_groups=2), HEADS[:1], sizes)


def distilbert(root):
    sizes = dict(vocab_size=VOCAB, pad_token_id=PAD, n_layers=4, n_heads=4, dim=32, hidden_dim=44, max_position_embeddings=24,
                 dropout=0, attention_dropout=0, qa_dropout=0, seq_classif_dropout=0, activation="gelu")
    bert_like(root, "distilbert", hf.DistilBertConfig, "DistilBert", {}, HEADS, sizes, kinds=False, bare="distilbert.")


def pair(root, name, model, **facts):
    hf_case.randomize(model)
    source, mask, _ = tokens(seq=SEQ)
    target, target_mask, _ = tokens(seq=7)
    inputs = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target, "decoder_attention_mask": target_mask,
              "labels": hf_case.uneven_labels(torch.randint(0, VOCAB, target.shape), causal=False)}

    def run(model, inputs):
        out = model(**inputs)
        return out.loss, {"logits": out.logits}

    generate(root, name, model)
    hf_case.write(root, name, model, inputs, run, **facts)


def vectors(root, name, model, prefix="", rename=hf_case.same, inputs=None, pooling="mean", ignore=(), **facts):
    """A bare model: the mean of its last states over what is no padding, or the first or the last of them. `prefix`: of what its
    parameters are called here."""
    hf_case.randomize(model)
    if inputs is None:
        ids, mask, _ = tokens()
        inputs = {"input_ids": ids, "attention_mask": mask}

    def run(model, inputs):
        with torch.no_grad():
            states = model(**inputs).last_hidden_state
        counts = inputs.get("attention_mask", torch.ones(states.shape[:2], dtype=torch.int64)).unsqueeze(-1)
        if pooling == "last":
            return None, {"embedding": states[torch.arange(len(states)), counts.squeeze(-1).sum(1) - 1]}
        return None, {"embedding": states[:, 0] if pooling == "cls" else (states * counts).sum(1) / counts.sum(1)}

    hf_case.write(root, name, model, inputs, run, rename=lambda name, tensor: rename(prefix + name, tensor), ignore=ignore, tp=[1, 2],
                  layouts="few", config={"pooling": pooling}, **facts)


def generate(root, name, model):
    """What transformers makes of two sources of equal length and one of another, without an end."""
    new, prompts = 9, [torch.randint(4, VOCAB, (n,)) for n in (7, 7, 4)]
    facts = {"prompts": [p.tolist() for p in prompts], "max_new_tokens": new}
    for kind, beams in (("greedy", 1), ("beams", 3)):
        settings = hf.GenerationConfig(max_new_tokens=new, num_beams=beams, do_sample=False, no_repeat_ngram_size=2, encoder_no_repeat_ngram_size=0,
                                       eos_token_id=VOCAB, pad_token_id=0,
                                       decoder_start_token_id=model.config.decoder_start_token_id)
        made = [model.generate(p.unsqueeze(0), settings)[0, 1:].tolist() for p in prompts]
        facts[kind] = made
    folder = pathlib.Path(root) / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "generate.json").write_text(json.dumps(facts))


def t5_norm(self, x):
    """T5's norm in the model's own type; transformers makes its statistics in fp32."""
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def t5_like(root, family, config, prefix, variants):
    """Both halves, and heads on both or on the encoder alone. `variants`: {suffix: (dtype, tied, keys)}."""
    sizes = dict(vocab_size=VOCAB, d_model=32, d_kv=10, d_ff=44, num_layers=3, num_decoder_layers=2, num_heads=4,
                 relative_attention_num_buckets=8, relative_attention_max_distance=6, dropout_rate=0, layer_norm_epsilon=1e-4,
                 decoder_start_token_id=0, pad_token_id=0, feed_forward_proj="relu")
    for number, (suffix, (dtype, tied, more)) in enumerate(variants.items()):
        model = getattr(hf, f"{prefix}ForConditionalGeneration")(config(**(sizes | more))).to(dtype)
        keys = {}
        if not tied:
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
            keys = {"tie_word_embeddings": False}
        pair(root, f"{family}_{suffix}", model, blocks=5, tp=[1, 2, 4], layouts="few" if number else "all", config=keys)

    def without_base(name, tensor):
        return {name.removeprefix("transformer."): tensor}

    for head, suffix, more in (("sequence_classification", "SequenceClassification", dict(num_labels=5)),
                               ("token_classification", "TokenClassification", dict(num_labels=5)),
                               ("question_answering", "QuestionAnswering", {})):
        model = getattr(hf, f"{prefix}For{suffix}")(config(**(sizes | more), eos_token_id=1)).double()
        encoder(root, f"{family}_{head}_fp64", model, head, kinds=False, end=1, rename=without_base, blocks=3 if "token" in head else 5,
                tp=[1, 2, 4], layouts="few")
    vectors(root, f"{family}_embedding_fp64", getattr(hf, f"{prefix}EncoderModel")(config(**sizes)).double(), blocks=3)


BART = dict(vocab_size=VOCAB, d_model=32, encoder_layers=2, decoder_layers=3, encoder_ffn_dim=44, decoder_ffn_dim=36,
            encoder_attention_heads=4, decoder_attention_heads=8, max_position_embeddings=24, dropout=0,
            attention_dropout=0, activation_dropout=0, pad_token_id=PAD, bos_token_id=0, eos_token_id=2,
            decoder_start_token_id=2, forced_eos_token_id=None)


def t5(root):
    hf.models.t5.modeling_t5.T5LayerNorm.forward = t5_norm
    t5_like(root, "t5", hf.T5Config, "T5",
            {"fp64": (torch.float64, True, {}), "gated_fp32": (torch.float32, True, dict(feed_forward_proj="gated-gelu", initializer_factor=0.3)),
             "untied_fp64": (torch.float64, False, dict(feed_forward_proj="gated-silu", tie_word_embeddings=False))})


def mt5(root):
    hf.models.mt5.modeling_mt5.MT5LayerNorm.forward = t5_norm
    t5_like(root, "mt5", hf.MT5Config, "MT5",
            {"untied_fp64": (torch.float64, False, dict(feed_forward_proj="gated-gelu")), "fp32": (torch.float32, True, dict(initializer_factor=0.3))})


def bart_like(root, family, config, prefix, heads, more, ignore=(), activation="relu"):
    sizes = BART | more
    for name, dtype, keys in (("fp64", torch.float64, dict(scale_embedding=True)), ("fp32", torch.float32, dict(activation_function=activation))):
        model = getattr(hf, f"{prefix}ForConditionalGeneration")(config(**sizes, **keys)).to(dtype)
        model.final_logits_bias.normal_(0, 0.3)
        pair(root, f"{family}_{name}", model, blocks=5, tp=[1, 2, 4], layouts="all" if name == "fp64" else "few", zero=["k_proj.bias"],
             buffers=["final_logits_bias"])
    for suffix in heads:
        head = {"SequenceClassification": "sequence_classification", "QuestionAnswering": "question_answering", "CausalLM": "masked_lm"}[suffix]
        keys = dict(num_labels=5) if "Sequence" in suffix else {}
        model = getattr(hf, f"{prefix}For{suffix}")(config(**sizes, **keys, use_cache=False)).double()
        # A classifier reads rows at their end; mBART's decoder begins with it too.
        encoder(root, f"{family}_{suffix}_fp64", model, head, kinds=False, end=2, blocks=3 if suffix == "CausalLM" else 5, tp=[1, 2, 4],
                layouts="few", ignore=[f"model.decoder.layers.{i}.encoder_attn" for i in range(3)] if suffix == "CausalLM" else ignore)


CLASSES_AND_WORDS = ["SequenceClassification", "QuestionAnswering", "CausalLM"]


def bart(root):
    bart_like(root, "bart", hf.BartConfig, "Bart", CLASSES_AND_WORDS, {})


def mbart(root):
    bart_like(root, "mbart", hf.MBartConfig, "MBart", CLASSES_AND_WORDS, {})


def blenderbot(root):
    # With relu the last block's attention has gradients of which transformers' own fp32 holds five digits.
    bart_like(root, "blenderbot", hf.BlenderbotConfig, "Blenderbot", ["CausalLM"], {}, activation="silu")


def blenderbot_small(root):
    bart_like(root, "blenderbot_small", hf.BlenderbotSmallConfig, "BlenderbotSmall", ["CausalLM"], {})


def file_name(name, tensor):
    """A ViT's parameter under its name in Hugging Face's files, which the class spells otherwise."""
    for new, old in ((r"\.layers\.", ".encoder.layer."), (r"attention\.q_proj", "attention.attention.query"),
                     (r"attention\.k_proj", "attention.attention.key"), (r"attention\.v_proj", "attention.attention.value"),
                     (r"attention\.o_proj", "attention.output.dense"), (r"mlp\.fc1", "intermediate.dense"),
                     (r"mlp\.fc2", "output.dense")):
        name = re.sub(new, old, name)
    return {name: tensor}


def pixels(model):
    return {"pixel_values": torch.randn(ROWS, model.config.num_channels, *model.config.image_size, dtype=next(model.parameters()).dtype)}


def images(root, name, model, rename=file_name, labels=torch.tensor([0, 4, 2, -100, 1, 3]), **facts):
    hf_case.randomize(model)
    inputs = pixels(model) | {"labels": labels}

    def run(model, inputs):
        out = model(**inputs)
        return out.loss, {"scores": out.logits}

    hf_case.write(root, name, model, inputs, run, rename=rename, **facts)


def vit(root):
    sizes = dict(num_hidden_layers=4, num_attention_heads=4, hidden_size=32, intermediate_size=44, image_size=[12, 8], patch_size=4,
                 num_channels=3, layer_norm_eps=1e-4, num_labels=5)
    for name, dtype, more in (("fp64", torch.float64, {}), ("no_bias_fp32", torch.float32, dict(qkv_bias=False, hidden_act="gelu_new"))):
        images(root, f"vit_{name}", hf.ViTForImageClassification(hf.ViTConfig(**sizes, **more)).to(dtype), blocks=4, tp=[1, 2, 4],
               layouts="all" if name == "fp64" else "few")
    images(root, "deit_fp32", hf.DeiTForImageClassification(hf.DeiTConfig(**sizes)), blocks=4, tp=[1, 2, 4], layouts="few", zero=["key.bias"])
    for name, model in (("vit", hf.ViTModel(hf.ViTConfig(**sizes))), ("deit", hf.DeiTModel(hf.DeiTConfig(**sizes)))):
        vectors(root, f"{name}_embedding_fp64", model.double(), f"{name}.", file_name, pixels(model.double()), ignore=["pooler."], blocks=4)


class Taught(torch.nn.Module):
    """DeiT with a teacher that takes part: the second token learns its class, or with a temperature its shares of them."""

    def __init__(self, student, teacher, alpha, temperature=None):
        super().__init__()
        self.config, self.alpha, self.temperature = student.config, alpha, temperature
        self.deit, self.cls_classifier, self.distillation_classifier = student.deit, student.cls_classifier, student.distillation_classifier
        self.student = [student]  # no module: its parts are this one's
        self.teacher = teacher.requires_grad_(False)

    def forward(self, pixel_values, labels):
        out, taught = self.student[0](pixel_values), self.teacher(pixel_values).logits
        loss, t = torch.nn.functional.cross_entropy, self.temperature
        if t is None:
            learnt = loss(out.distillation_logits, taught.argmax(-1))
        else:
            # The divergence of Hinton et al., a mean over images and classes, as DeiT's authors take it.
            divergence = torch.nn.functional.kl_div((out.distillation_logits / t).log_softmax(-1), (taught / t).softmax(-1), reduction="sum")
            learnt = divergence * t**2 / taught.numel()
        return types.SimpleNamespace(logits=out.logits, loss=(1 - self.alpha) * loss(out.cls_logits, labels) + self.alpha * learnt)


def deit_taught(root):
    sizes = dict(num_hidden_layers=4, num_attention_heads=4, hidden_size=32, intermediate_size=44, image_size=[12, 8], patch_size=4,
                 num_channels=3, layer_norm_eps=1e-4, num_labels=5)
    teacher = hf.ViTForImageClassification(hf.ViTConfig(**sizes | dict(num_hidden_layers=2, hidden_size=24, hidden_act="relu")))
    hf_case.randomize(teacher)
    student = hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**sizes))
    # The teacher's configuration as its files would have it.
    teacher.config.architectures = ["ViTForImageClassification"]
    config = {"architectures": ["DeiTForImageClassificationWithTeacher"], "distillation_alpha": 0.3,
              "teacher": {"path": "", "model": json.loads(teacher.config.to_json_string())}}
    labels = torch.tensor([0, 4, 2, 2, 1, 3])
    images(root, "deit_taught_fp64", Taught(student, teacher, 0.3).double(), blocks=4, tp=[1, 2, 4], layouts="few", config=config, labels=labels)
    images(root, "deit_taught_soft_fp64", Taught(student, teacher, 0.4, 1.7).double(), blocks=4, tp=[1, 2, 4], layouts="few",
           config=config | {"distillation": "soft", "distillation_alpha": 0.4, "distillation_tau": 1.7}, labels=labels)


def vit_mae(root):
    sizes = dict(num_hidden_layers=3, num_attention_heads=4, hidden_size=32, intermediate_size=44, image_size=12, patch_size=4, num_channels=3,
                 layer_norm_eps=1e-4, decoder_num_attention_heads=2, decoder_hidden_size=24, decoder_num_hidden_layers=2,
                 decoder_intermediate_size=36, mask_ratio=0.6)
    for name, dtype, more in (("fp64", torch.float64, dict(norm_pix_loss=True)), ("fp32", torch.float32, dict(hidden_act="gelu_new"))):
        model = hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**sizes, **more)).to(dtype)
        hf_case.randomize(model)
        inputs = {"pixel_values": torch.randn(ROWS, 3, 12, 12, dtype=dtype), "noise": torch.rand(ROWS, 9, dtype=dtype)}

        def run(model, inputs):
            out = model(**inputs)
            return out.loss, {"logits": out.logits, "mask": out.mask.long()}

        hf_case.write(root, f"vit_mae_{name}", model, inputs, run, rename=file_name, blocks=5, tp=[1, 2],
                      layouts="all" if name == "fp64" else "few", zero=["key.bias"] if name == "fp32" else [])


class Projector(torch.nn.ModuleList):
    """Linear layers, each with a norm over the batch; the last norm has no weights."""

    def __init__(self, sizes):
        super().__init__(torch.nn.ModuleDict({"dense": torch.nn.Linear(a, b, bias=False),
                                              "norm": torch.nn.BatchNorm1d(b, affine=i + 2 < len(sizes))})
                         for i, (a, b) in enumerate(zip(sizes, sizes[1:])))

    def forward(self, x):
        for i, layer in enumerate(self):
            x = layer["norm"](layer["dense"](x))
            x = torch.relu(x) if i + 1 < len(self) else x
        return x


class Moco(torch.nn.Module):
    """MoCo v3 as its authors train it; transformers does not know this model. The average moves before a step, but not before
    the first one."""

    def __init__(self, config, temperature):
        super().__init__()
        self.config, self.temperature, self.steps = config, temperature, 0
        self.vit = hf.ViTModel(config, add_pooling_layer=False)
        self.projector = Projector([config.hidden_size, config.mlp_dim, config.mlp_dim, config.projection_dim])
        self.predictor = Projector([config.projection_dim, config.mlp_dim, config.projection_dim])
        self.momentum = torch.nn.ModuleDict({"vit": copy.deepcopy(self.vit), "projector": copy.deepcopy(self.projector)})
        self.momentum.requires_grad_(False)
        self.vit.embeddings.position_embeddings.requires_grad_(False)

    def step(self):
        if self.steps > 0:
            keep = 1 - (1 - self.config.momentum) * 0.5 * (1 + math.cos(math.pi * self.steps / hf_case.STEPS))
            with torch.no_grad():
                for own, average in ((self.vit, self.momentum["vit"]), (self.projector, self.momentum["projector"])):
                    for name, p in average.named_parameters():
                        if "position_embeddings" not in name:
                            p.mul_(keep).add_(own.get_parameter(name), alpha=1 - keep)
        self.steps += 1

    def forward(self, views):
        def direction(x):
            return torch.nn.functional.normalize(x, dim=1)

        def first(vit, x):
            return vit(x).last_hidden_state[:, 0]

        for module in self.modules():
            if isinstance(module, torch.nn.BatchNorm1d):
                module.train()
        queries = [direction(self.predictor(self.projector(first(self.vit, views[:, v])))) for v in (0, 1)]
        with torch.no_grad():
            keys = [direction(self.momentum["projector"](first(self.momentum["vit"], views[:, v]))) for v in (0, 1)]
        scores = [queries[v] @ keys[1 - v].T / self.temperature for v in (0, 1)]
        labels = torch.arange(len(views))
        loss = sum(torch.nn.functional.cross_entropy(s, labels) for s in scores) * 2 * self.temperature
        return types.SimpleNamespace(loss=loss, logits=torch.stack(scores, 1))


def moco_v3(root):
    """The loss is a function of a micro-batch over all data ranks: here of four images."""
    config = hf.ViTConfig(num_hidden_layers=4, num_attention_heads=4, hidden_size=32, intermediate_size=44, image_size=[12, 8], patch_size=4,
                          num_channels=3, layer_norm_eps=1e-4, projection_dim=20, mlp_dim=36, momentum=0.9)
    model = Moco(config, 0.4).double()
    hf_case.randomize(model)
    inputs = {"pixel_values": torch.randn(12, 2, 3, 12, 8).double()}

    def run(model, inputs):
        model.step()
        parts = [model(views) for views in inputs["pixel_values"].split(4)]
        return sum(p.loss for p in parts) / len(parts), {"logits": torch.cat([p.logits for p in parts])}

    hf_case.write(root, "moco_v3_fp64", model, inputs, run, rename=file_name, blocks=4, tp=[1, 2, 4], buffers=["running_mean", "running_var"],
                  config={"model_type": "moco_v3", "architectures": ["MoCoV3ForPreTraining"], "temperature": 0.4})


def swin_file_name(name, tensor):
    for new, old in ((r"attention\.q_proj", "attention.self.query"), (r"attention\.k_proj", "attention.self.key"),
                     (r"attention\.v_proj", "attention.self.value"), (r"attention\.o_proj", "attention.output.dense"),
                     (r"attention\.relative_position_bias\.", "attention.self."), (r"mlp\.fc1", "intermediate.dense"),
                     (r"mlp\.fc2", "output.dense")):
        name = re.sub(new, old, name)
    return {name: tensor}


def swin(root):
    # Windows that do not divide the image, with and without a shift; an odd number of rows to merge.
    sizes = dict(patch_size=2, num_channels=3, embed_dim=16, depths=[2, 2, 1], num_heads=[2, 4, 4], window_size=3, mlp_ratio=2.5,
                 drop_path_rate=0, layer_norm_eps=1e-4, num_labels=5)
    for name, more in (("fp64", dict(image_size=[20, 24])), ("places_fp64", dict(image_size=[24, 28], use_absolute_embeddings=True, qkv_bias=False))):
        images(root, f"swin_{name}", hf.SwinForImageClassification(hf.SwinConfig(**sizes, **more)).double(), swin_file_name, blocks=5,
               tp=[1, 2], layouts="all" if name == "fp64" else "few")
    sizes |= dict(image_size=[24, 28])
    second = hf.Swinv2Config(**sizes, pretrained_window_sizes=[0, 4, 0])
    images(root, "swinv2_fp64", hf.Swinv2ForImageClassification(second).double(), hf_case.same, blocks=5, tp=[1, 2],
           layouts="few", bound=1e-6)  # its distances are fp32 numbers
    for name, model in (("swin", hf.SwinModel(hf.SwinConfig(**sizes))), ("swinv2", hf.Swinv2Model(second))):
        vectors(root, f"{name}_embedding_fp64", model.double(), f"{name}.", swin_file_name if name == "swin" else hf_case.same,
                pixels(model.double()), ignore=["pooler."], blocks=5, bound=1e-6)


class Affine(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.alpha = torch.nn.Parameter(torch.ones(features))
        self.beta = torch.nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return self.alpha * x + self.beta


class ResMlpBlock(torch.nn.Module):
    def __init__(self, features, positions, inner):
        super().__init__()
        self.norm1, self.norm2 = Affine(features), Affine(features)
        self.attn = torch.nn.Linear(positions, positions)
        self.mlp = torch.nn.ModuleDict({"fc1": torch.nn.Linear(features, inner), "fc2": torch.nn.Linear(inner, features)})
        self.gamma_1 = torch.nn.Parameter(torch.full((features,), 0.3))
        self.gamma_2 = torch.nn.Parameter(torch.full((features,), 0.3))

    def forward(self, x):
        x = x + self.gamma_1 * self.attn(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.gamma_2 * self.mlp["fc2"](torch.nn.functional.gelu(self.mlp["fc1"](self.norm2(x))))


class ResMlp(torch.nn.Module):
    """As its paper has it; transformers does not know this model."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        height, width = config.image_size
        positions = (height // config.patch_size) * (width // config.patch_size)
        self.patch_embed = torch.nn.ModuleDict({"proj": torch.nn.Conv2d(3, config.embed_dim, config.patch_size, config.patch_size)})
        self.blocks = torch.nn.ModuleList(ResMlpBlock(config.embed_dim, positions, int(config.mlp_ratio * config.embed_dim))
                                          for _ in range(config.depth))
        self.norm = Affine(config.embed_dim)
        self.head = torch.nn.Linear(config.embed_dim, config.num_labels)

    def forward(self, pixel_values, labels):
        x = self.patch_embed["proj"](pixel_values).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x).mean(1))
        return types.SimpleNamespace(loss=hf_case.cross_entropy(logits, labels), logits=logits)


def resmlp(root):
    config = hf.PretrainedConfig(image_size=[12, 8], patch_size=4, num_channels=3, embed_dim=32, depth=4, mlp_ratio=2.5, num_labels=5)
    images(root, "resmlp_fp64", ResMlp(config).double(), hf_case.same, blocks=4, tp=[1, 2, 4],
           config={"model_type": "resmlp", "architectures": ["ResMLPForImageClassification"]})


def clip(root):
    """The loss is a function of a micro-batch: here of two rows."""
    text = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
                max_position_embeddings=24, layer_norm_eps=1e-4, eos_token_id=5, bos_token_id=4, pad_token_id=PAD)
    vision = dict(hidden_size=40, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4, image_size=12, patch_size=4,
                  layer_norm_eps=1e-3, hidden_act="gelu")
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=20)).double()
    hf_case.randomize(model)
    ids, mask, _ = tokens()
    ids = torch.where(ids == 5, 6, ids)
    ids[torch.arange(ROWS), mask.sum(1) - 1] = 5
    inputs = {"input_ids": ids, "attention_mask": mask, "pixel_values": torch.randn(ROWS, 3, 12, 12).double()}

    def run(model, inputs):
        parts = [model(**{k: v[row : row + 2] for k, v in inputs.items()}, return_loss=True) for row in range(0, ROWS, 2)]
        return sum(p.loss for p in parts) / len(parts), {"logits_per_text": torch.cat([p.logits_per_text for p in parts])}

    hf_case.write(root, "clip_fp64", model, inputs, run, blocks=4, tp=[1, 2, 4], dp=[1])


if __name__ == "__main__":
    for family in (bert, megatron_bert, roberta, electra, albert, distilbert, t5, mt5, bart, mbart, blenderbot, blenderbot_small, vit, deit_taught, vit_mae, moco_v3, swin, resmlp, clip):
        if len(sys.argv) > 2 and family.__name__ not in sys.argv[2:]:
            continue
        torch.manual_seed(7)
        family(sys.argv[1])
