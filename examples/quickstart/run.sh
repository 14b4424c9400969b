#!/usr/bin/env bash
# The whole chain on this machine: text -> tokenizer -> dataset -> training on 2 x 2 x 2 ranks -> split
# checkpoint -> one rank -> Hugging Face folder -> generated text. Everything lands in out/quickstart;
# a step whose result is there is not repeated (remove the folder to start again).
#
#   examples/quickstart/run.sh [PROGRAM]     PROGRAM: build/release/bin/trireme
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/release/bin/trireme}
out=out/quickstart
config=configs/quickstart.yaml
mkdir -p "$out"

bold=$'\e[1m' plain=$'\e[0m'
if [[ ! -t 1 || -n "${NO_COLOR:-}" ]]; then bold='' plain=''; fi
step() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; shift; printf '  %s\n' "$@"; }
# Shows a command as a user would type it, but for the many text files, then runs it.
run() {
  local word shown=''
  for word in "$@"; do
    if [[ "$word" == "$torch"/* ]]; then shown+='FILE... '; break; fi
    shown+="$(printf '%q' "$word") "
  done
  printf '%s$ trireme %s%s\n' "$bold" "$shown" "$plain"
  "$program" "$@"
}
done_already() { [[ -e "$1" ]] && echo "  $1 is there, reused"; }

torch_folder() {
  local find_it="import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  .venv/bin/python -c "$find_it" 2>/dev/null || python3 -c "$find_it"
}
torch=${TRIREME_TORCH:-$(torch_folder)}
# Shuffled, and the same way each time: the last documents are held out, and should be like the rest, as
# should the first of those, which an evaluation reads; so no file is large.
sources() { find -L "$1" -name "$2" -size +1k -size -32k | LC_ALL=C sort | shuf --random-source=<(yes); }
mapfile -t text < <(sources "$torch" '*.py')
if ((${#text[@]} == 0)); then  # an unpacked LibTorch has no Python, but headers
  mapfile -t text < <(sources "$torch/include" '*.h')
fi

step "1. A tokenizer" \
  "Byte-level BPE with 4096 tokens, learned from ${#text[@]} source files of the installed PyTorch."
done_already "$out/tokenizer/tokenizer.json" ||
  run tokenizer train --type bpe --vocab-size 4096 --out "$out/tokenizer" "${text[@]}"

step "2. A dataset" \
  "The same files as token ids, an end-of-text token after each; 95 % to train on, 5 % held out."
done_already "$out/data_valid.idx" ||
  run preprocess --tokenizer "$out/tokenizer" --out "$out/data" --append-eod --split 95,5 --input "${text[@]}"

step "3. Training on 8 ranks: 2 data x 2 tensor x 2 pipeline" \
  "A small GPT-2 ($config). Each rank is a process of this machine and holds a quarter of the" \
  "model; the loss is the one that a single rank would draw. Validation runs along the way."
[[ -e "$out/untrained/checkpoints/latest" ]] || {
  echo "  First a run that learns nothing: its validation loss is that of a guess, near ln 4096 = 8.32."
  run train --config "$config" --ranks 8 "train.output_dir=$out/untrained" train.train_iter=1 optim.lr=0 \
    $([[ -e "$out/untrained" ]] && echo --resume)
}
run train --config "$config" --ranks 8 $([[ -e "$out/run" ]] && echo --resume)
checkpoint="$out/run/checkpoints/$(<"$out/run/checkpoints/latest")"
echo "  validation loss:"
for metrics in "$out/untrained/metrics.jsonl" "$out/run/metrics.jsonl"; do
  sed -nE 's/.*"step": *([0-9]+),.*"eval_loss": *([0-9]+\.[0-9]{1,4}).*/    step \1: \2/p' "$metrics"
done

step "4. The checkpoint, resharded to one rank" \
  "Each rank wrote its own slices. Any layout can read them; here they become one."
printf '%s$ ls %s%s\n' "$bold" "$checkpoint" "$plain"
ls "$checkpoint"
done_already "$out/one" ||
  run ckpt convert "$checkpoint" "$out/one" --to split --tensor-parallel 1 --pipeline-parallel 1

step "5. Merged into a Hugging Face folder" \
  "transformers loads it with AutoModelForCausalLM.from_pretrained(\"$out/hf\")."
done_already "$out/hf" || run ckpt convert "$out/one" "$out/hf" --to hf

step "6. Generation" "The merged model continues a prompt."
run generate --model "$out/hf" --prompt $'class Linear(Module):\n    def __init__(self,' --max-new-tokens 60 \
  --temperature 0.7 --top-k 40

printf '\n%sDone.%s Losses: %s; curves: tensorboard --logdir %s\n' "$bold" "$plain" "$out/run/metrics.jsonl" "$out/run"
