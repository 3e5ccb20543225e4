#!/usr/bin/env bash
# Test and measure on the GPUs of a machine, in some fifteen minutes, of several GPUs five more: train doctor, which ends it at
# a problem, the tests marked `gpu`, the throughput of the step beside its peers, ranks, estimates, the cost of each algorithm,
# and with a folder of images a short training. Writes gpu.json and gpu.txt after each part, and the output of PART to PART.txt.
#
#   scripts/gpu.sh [--dry] [--out FOLDER] [IMAGES]          --dry: the same at toy size on the CPU, in a minute or two
#
# Needs this checkout and a Python ($PYTHON, else .venv's, else python3) with torch, torchvision, timm, rich, matplotlib,
# psutil, pytest, pytest-xdist, tensorboard, numpy, pydantic, pyyaml, scipy, safetensors, fsspec, hydra-core, omegaconf and
# antlr4-python3-runtime. Composer is measured if it is installed.
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
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())') || exit 2
if [ -z "$dry" ] && [ "$gpus" = 0 ]; then
    echo "gpu.sh: torch detects no GPU; use --dry for a small run on the CPU" >&2
    exit 2
fi
[ -z "$dry" ] || gpus=0
[ -z "$images" ] || [ -d "$images" ] || { echo "gpu.sh: $images is not a folder; pass a folder of train/CLASS and val/CLASS" >&2; exit 2; }

mkdir -p "$out"
rm -rf "$out"/short "$out"/parts.jsonl "$out"/step-*.json "$out"/estimate-*.json "$out"/algorithms.json "$out"/tests-*.xml
: > "$out/gpu.txt"
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
failed="" running=""
trap 'kill "$running" 2>/dev/null; exit 143' INT TERM

# part NAME SECONDS COMMAND...: print the output and append it to gpu.txt; a failure does not stop the next part.
part() {
    local name=$1 seconds=$2 start=$SECONDS code
    shift 2
    # note: a dry run checks that the parts work, on a machine of any speed
    [ -z "$dry" ] || seconds=$((seconds * 3))
    echo "== $name" | tee -a "$out/gpu.txt"
    # note: not through a pipe, which processes that outlive the part would keep open
    : > "$out/$name.txt"
    timeout --kill-after=15 "$seconds" "$@" > "$out/$name.txt" 2>&1 &
    running=$!
    tail -n +1 -s 0.2 -f --pid="$running" "$out/$name.txt"
    wait "$running"
    code=$?
    cat "$out/$name.txt" >> "$out/gpu.txt"
    [ "$code" != 124 ] && [ "$code" != 137 ] || echo "$name: stopped after $seconds s" | tee -a "$out/gpu.txt"
    # note: a contender of ours that cannot run has no figure
    if [ -z "$dry" ] && [ "$code" = 0 ] && grep -q "^skipped recipe" "$out/$name.txt"; then code=1; fi
    [ "$code" = 0 ] || failed="$failed $name"
    echo "{\"part\": \"$name\", \"seconds\": $((SECONDS - start)), \"exit_code\": $code}" >> "$out/parts.jsonl"
    write_results
    [ "$code" = 0 ]
}

# write_results: join the results of the parts so far in gpu.json.
write_results() {
    "$python" - "$out" <<'END'
import json
import sys
from pathlib import Path

out, results = Path(sys.argv[1]), {}
for path in sorted(out.glob("*.json")):
    try:
        results[path.stem] = json.loads(path.read_text())
    except ValueError:
        print(f"gpu.sh: {path} is incomplete", file=sys.stderr)
parts = [json.loads(line) for line in (out / "parts.jsonl").read_text().splitlines()]
facts = results.pop("facts", {})
results.pop("gpu", None)
(out / "gpu.json").write_text(json.dumps({**facts, "parts": parts, **results}, indent=2) + "\n")
END
}

# tests NAME SECONDS PROCESSES EXPRESSION: the GPU tests whose names match; those of several processes share the GPU.
tests() {
    local processes=$3
    [ -z "$dry" ] || processes=0
    # note: -vv names each test as it ends, so that a limit hides none; PyTorch's logs are long
    part "tests-$1" "$2" "$python" -m pytest -vv -rP -p no:logging -n "$processes" -m gpu tests/gpu -k "$4" \
        --confcutdir=tests/gpu -p no:cacheprovider --junitxml="$out/tests-$1.xml"
}

# estimate RANKS: time and images/s of mild in all, over its image sizes.
estimate() {
    # shellcheck disable=SC2016
    part "estimate-$1" 100 sh -c '"$@" > "$0"' "$out/estimate-$1.json" \
        "$python" -m launcher estimate recipe=mild "${whole[@]}" launch.nproc="$1" runs="$out" --seconds "${dry:+0.}1" --json
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
    whole=("${train[@]}")
else
    measured=(--sizes 176 88 128 --repeats 3 --build-seconds 60) algorithms=(--steps 10 --repeats 3)
    whole=(dataset=imagenet dataset.path=/ dataloader=synthetic batch_size="$((256 * gpus))")
    train=(dataset=image_folder dataset.path="$images" epochs=2 batch_size="$((256 * gpus))" schedule.warmup=1ep)
fi
memory="memory_does or out_of_memory or finds_the_largest" command="killed or verbs"
"$python" - > "$out/facts.json" <<'END'
import json
import subprocess

import torch

def output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""

device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
smi = output("nvidia-smi", "--query-gpu=driver_version,power.limit,clocks.max.sm,pcie.link.gen.max", "--format=csv,noheader")
versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
commit = output("git", "describe", "--always", "--dirty=+", "--exclude=*")
print(json.dumps({"device": device, "gpus": torch.cuda.device_count(), "smi": smi.splitlines(), **versions, "commit": commit}))
END
part doctor 90 "$python" -m launcher doctor dataset=shapes || { echo "gpu.sh: train doctor found a problem" >&2; exit 1; }
# note: what costs least first; a part that exceeds its limit keeps the results measured by then
tests eager 100 4 "not captured_steps and not compiled_steps and not ($memory or $command or several_gpus)"
step eager 80
tests captured 80 4 captured_steps
step graphs 50
if [ "$gpus" -gt 1 ]; then
    tests ranks 150 0 several_gpus
    estimate "$gpus"
fi
tests memory 90 0 "$memory"
[ -n "$dry" ] || tests command 180 3 "$command"
estimate 1
part algorithms 60 "$python" -m benchmarks.algorithms "${algorithms[@]}" --json "$out/algorithms.json"
# note: Inductor needs a minute for each of them on four cores
tests compiled 120 4 "compiled_steps and (mild or hot or small or timm_a2)"
[ -n "$dry" ] || step compiled 130
if [ -n "$dry" ] || [ -n "$images" ]; then
    # note: a training that is not over by then saves a checkpoint and exits
    # shellcheck disable=SC2016
    part training 90 sh -c 'timeout "$0" "$@"; code=$?; [ "$code" = 124 ] || exit "$code"' "${dry:+1}50" \
        "$python" -m launcher recipe=mild "${train[@]}" runs="$out" run_name=short
fi
echo "written: $out/gpu.json and $out/gpu.txt"
[ -z "$failed" ] || { echo "gpu.sh: failed:$failed" >&2; exit 1; }
