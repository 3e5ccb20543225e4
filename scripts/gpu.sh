#!/usr/bin/env bash
# What a GPU is asked, in ten minutes at most: the tests marked `gpu`, the speed of the step beside its peers, the cost of
# each method, and, where a folder of pictures is given, a short training. Writes gpu.json and gpu.txt.
#
#   scripts/gpu.sh [--dry] [--out FOLDER] [PICTURES]        --dry: the same at toy size on the CPU, in a minute or two
#
# Needs this checkout and a Python ($PYTHON, else .venv's, else python3) with torch, torchvision, timm, rich, matplotlib,
# psutil, pytest, tensorboard, numpy, pydantic, pyyaml, scipy, safetensors, fsspec and, as wheels where there is no network,
# hydra-core, omegaconf and antlr4-python3-runtime; ffcv for FFCV files alone. Composer takes part where it is installed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

dry="" out="gpu-results" pictures=""
while [ $# -gt 0 ]; do
    case "$1" in
        --dry) dry=1 ;;
        --out) out="${2:?--out needs a folder}" && shift ;;
        -*) echo "gpu.sh: no such option: $1; there are --dry and --out FOLDER" >&2 && exit 2 ;;
        *) pictures="$1" ;;
    esac
    shift
done
python="${PYTHON:-.venv/bin/python}"
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
missing=$("$python" -c 'import importlib.util as u
names = "torch torchvision timm rich matplotlib psutil pytest tensorboard numpy pydantic yaml scipy safetensors fsspec"
print(*(n for n in f"{names} hydra omegaconf".split() if u.find_spec(n) is None))') || exit 2
[ -z "$missing" ] || { echo "gpu.sh: $python lacks $missing" >&2; exit 2; }
if [ -z "$dry" ] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "gpu.sh: torch finds no GPU here; --dry runs the same small on the CPU" >&2
    exit 2
fi
[ -z "$pictures" ] || [ -d "$pictures" ] || { echo "gpu.sh: $pictures is no folder" >&2; exit 2; }

mkdir -p "$out"
: > "$out/gpu.txt"
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
failed=""

# part NAME SECONDS COMMAND...: its output goes to the terminal and the table; the next part runs whatever became of it.
part() {
    local name=$1 seconds=$2 start=$SECONDS code
    shift 2
    echo "== $name" | tee -a "$out/gpu.txt"
    timeout "$seconds" "$@" 2>&1 | tee -a "$out/gpu.txt"
    code=${PIPESTATUS[0]}
    [ "$code" != 124 ] || echo "$name: stopped after $seconds s" | tee -a "$out/gpu.txt"
    [ "$code" = 0 ] || failed="$failed $name"
    echo "{\"part\": \"$name\", \"seconds\": $((SECONDS - start)), \"exit_code\": $code}" >> "$out/parts.jsonl"
}

rm -f "$out"/parts.jsonl "$out"/step-*.json "$out"/algorithms.json "$out"/tests.xml
tests=("$python" -m pytest -q -m gpu tests/gpu --confcutdir=tests/gpu -p no:cacheprovider --junitxml="$out/tests.xml")
if [ -n "$dry" ]; then
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    toy=(--model resnet18 --batch 4 --steps 1 --repeats 1 --device cpu --precision fp32)
    part tests 400 env GPU_TESTS=dry "${tests[@]}"
    part step-mild 200 "$python" -m benchmarks.step --recipe mild --sizes 32 "${toy[@]}" --json "$out/step-mild.json"
    part algorithms 200 "$python" -m benchmarks.algorithms --size 32 "${toy[@]}" --algorithms blurpool sam \
        --json "$out/algorithms.json"
    train=(dataset=shapes dataset.native_size=32 dataset.train_samples=64 dataset.val_samples=10 model=resnet18
        launch=cpu batch_size=16 eval_batch_size=10 epochs=1 schedule.warmup=1ba dataloader.workers=0)
else
    # note: what compiles may take longer than its limit, and keeps what it has measured by then
    part tests 240 "${tests[@]}"
    part step-mild 60 "$python" -m benchmarks.step --recipe mild --sizes 88 128 176 224 --steps 20 --repeats 3 \
        --json "$out/step-mild.json"
    part algorithms 50 "$python" -m benchmarks.algorithms --steps 10 --repeats 3 --json "$out/algorithms.json"
    part step-compiled 170 "$python" -m benchmarks.step --recipe mild --sizes 176 88 224 128 --steps 20 --repeats 3 \
        --compiled --json "$out/step-compiled.json"
    train=(dataset=image_folder dataset.path="$pictures" epochs=2 batch_size=256 schedule.warmup=1ep launch.nproc=1)
fi
if [ -n "$dry" ] || [ -n "$pictures" ]; then
    part training 70 "$python" -m launcher recipe=mild "${train[@]}" runs="$out" run_name=short
fi

"$python" - "$out" <<'END'
import json
import sys
from pathlib import Path

import torch

out = Path(sys.argv[1])
found = {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json")) if path.stem != "gpu"}
parts = [json.loads(line) for line in (out / "parts.jsonl").read_text().splitlines()]
device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
facts = {"device": device, "torch": torch.__version__, "cuda": torch.version.cuda, "parts": parts}
(out / "gpu.json").write_text(json.dumps({**facts, **found}, indent=2) + "\n")
END
echo "written: $out/gpu.json and $out/gpu.txt"
[ -z "$failed" ] || { echo "gpu.sh: failed:$failed" >&2; exit 1; }
