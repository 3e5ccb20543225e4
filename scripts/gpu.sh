#!/usr/bin/env bash
# Test and measure on a GPU, in a quarter of an hour at most: the tests marked `gpu`, the throughput of the step beside its peers,
# the cost of each algorithm, and with a folder of images a short training. Writes gpu.json and gpu.txt.
#
#   scripts/gpu.sh [--dry] [--out FOLDER] [IMAGES]          --dry: the same at toy size on the CPU, in a minute or two
#
# Needs this checkout and a Python ($PYTHON, else .venv's, else python3) with torch, torchvision, timm, rich, matplotlib,
# psutil, pytest, pytest-xdist, tensorboard, numpy, pydantic, pyyaml, scipy, safetensors, fsspec, hydra-core, omegaconf and
# antlr4-python3-runtime; ffcv only for FFCV files. Composer is measured if it is installed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

dry="" out="gpu-results" images=""
while [ $# -gt 0 ]; do
    case "$1" in
        --dry) dry=1 ;;
        --out) out="${2:?--out needs a folder}" && shift ;;
        -*) echo "gpu.sh: $1: no such option; use --dry or --out FOLDER" >&2 && exit 2 ;;
        *) images="$1" ;;
    esac
    shift
done
python="${PYTHON:-.venv/bin/python}"
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
missing=$("$python" -c 'import importlib.util as u
names = "torch torchvision timm rich matplotlib psutil pytest xdist tensorboard numpy pydantic yaml scipy safetensors fsspec"
print(*(n for n in f"{names} hydra omegaconf antlr4".split() if u.find_spec(n) is None))') || exit 2
[ -z "$missing" ] || { echo "gpu.sh: $python needs $missing; run make setup, or set PYTHON" >&2; exit 2; }
if [ -z "$dry" ] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "gpu.sh: torch detects no GPU; use --dry for a small run on the CPU" >&2
    exit 2
fi
[ -z "$images" ] || [ -d "$images" ] || { echo "gpu.sh: $images is not a folder; pass a folder of train/CLASS and val/CLASS" >&2; exit 2; }

mkdir -p "$out"
: > "$out/gpu.txt"
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
failed=""

# part NAME SECONDS COMMAND...: print the output and append it to gpu.txt; a failure does not stop the next part.
part() {
    local name=$1 seconds=$2 start=$SECONDS code
    shift 2
    # note: a dry run checks that the parts work, on a machine of any speed
    [ -z "$dry" ] || seconds=$((seconds * 3))
    echo "== $name" | tee -a "$out/gpu.txt"
    timeout "$seconds" "$@" 2>&1 | tee -a "$out/gpu.txt"
    code=${PIPESTATUS[0]}
    [ "$code" != 124 ] || echo "$name: stopped after $seconds s" | tee -a "$out/gpu.txt"
    [ "$code" = 0 ] || failed="$failed $name"
    echo "{\"part\": \"$name\", \"seconds\": $((SECONDS - start)), \"exit_code\": $code}" >> "$out/parts.jsonl"
}

rm -f "$out"/parts.jsonl "$out"/step-*.json "$out"/algorithms.json "$out"/tests-*.xml

# tests NAME SECONDS PROCESSES EXPRESSION: the GPU tests whose names match; those of several processes share the GPU.
tests() {
    local processes=$3
    [ -z "$dry" ] || processes=0
    # note: -vv names each test as it ends, so that a limit hides none; PyTorch's logs are long
    part "tests-$1" "$2" "$python" -m pytest -vv -rP -p no:logging -n "$processes" -m gpu tests/gpu -k "$4" \
        --confcutdir=tests/gpu -p no:cacheprovider --junitxml="$out/tests-$1.xml"
}

# step LAUNCH SECONDS: the throughput of the step beside its peers.
step() {
    part "step-$1" "$2" "$python" -m benchmarks.step --recipe mild --launch "$1" "${measured[@]}" --json "$out/step-$1.json"
}

if [ -n "$dry" ]; then
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" GPU_TESTS=dry
    toy=(--model resnet18 --batch 4 --repeats 1 --device cpu --precision fp32)
    measured=(--sizes 32 --seconds 0 "${toy[@]}") algorithms=(--size 32 --steps 1 "${toy[@]}" --algorithms blurpool sam)
    train=(dataset=shapes dataset.native_size=32 dataset.train_samples=64 dataset.val_samples=10 model=resnet18
        launch=cpu batch_size=16 eval_batch_size=10 epochs=1 schedule.warmup=1ba dataloader.workers=0)
else
    measured=(--sizes 176 88 128 --repeats 3 --build-seconds 60) algorithms=(--steps 10 --repeats 3)
    train=(dataset=image_folder dataset.path="$images" epochs=2 batch_size=256 schedule.warmup=1ep launch.nproc=1)
fi
memory="memory_does or out_of_memory or finds_the_largest" command="killed or verbs"
# note: what costs least first; a part that exceeds its limit keeps the results measured by then
tests eager 100 4 "not captured_steps and not compiled_steps and not ($memory or $command)"
step eager 80
tests captured 60 4 captured_steps
step graphs 50
tests memory 90 0 "$memory"
[ -n "$dry" ] || tests command 180 3 "$command"
part algorithms 60 "$python" -m benchmarks.algorithms "${algorithms[@]}" --json "$out/algorithms.json"
# note: Inductor needs a minute for each of them on four cores
tests compiled 120 4 "compiled_steps and (mild or hot or small or timm_a2)"
[ -n "$dry" ] || step compiled 130
if [ -n "$dry" ] || [ -n "$images" ]; then
    part training 50 "$python" -m launcher recipe=mild "${train[@]}" runs="$out" run_name=short
fi

"$python" - "$out" <<'END'
import json
import sys
from pathlib import Path

import torch

out = Path(sys.argv[1])
results = {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json")) if path.stem != "gpu"}
parts = [json.loads(line) for line in (out / "parts.jsonl").read_text().splitlines()]
device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
facts = {"device": device, "torch": torch.__version__, "cuda": torch.version.cuda, "parts": parts}
(out / "gpu.json").write_text(json.dumps({**facts, **results}, indent=2) + "\n")
END
echo "written: $out/gpu.json and $out/gpu.txt"
[ -z "$failed" ] || { echo "gpu.sh: failed:$failed" >&2; exit 1; }
