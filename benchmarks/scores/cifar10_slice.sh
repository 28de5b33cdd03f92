#!/usr/bin/env bash
# The four studies of CIFAR-10 on one GPU, for so many minutes; the same command goes on where it stopped.
#
#   bash benchmarks/scores/cifar10_slice.sh MINUTES DATA STORES [EARLIER]
#
# STORES gets a folder for each study. EARLIER holds such folders of slices on other machines, of which
# study.json and results.jsonl are enough: what they have is not run again. Processes share the GPU by NVIDIA's
# MPS where it is installed. The exit code is 3 while something is left.
set -u
minutes=$1 data=$2 stores=$3 earlier=${4:-}
python=${PYTHON:-python3}
mkdir -p "$stores"

study() { # NAME WORKERS [LENDER…]
    local name=$1 workers=$2 from=() lender
    shift 2
    for lender in "$@" ${earlier:+"$earlier/$name"}; do
        [ -f "$lender/study.json" ] && [ -f "$lender/results.jsonl" ] && from+=(--from "$lender")
    done
    local left
    left=$("$python" -c "print(max(0.01, $minutes - $SECONDS / 60))")
    "$python" -m qbayes study run "$name" --store "$stores/$name" --data-dir "$data" --device cuda \
        --workers "$workers" --minutes "$left" --no-report "${from[@]}" >> "$stores/$name.log" 2>&1
}

ours() {
    # the parts of the recipe are looked at from the same float networks: they wait for those.
    study cifar10-gpu 7
    local code=$?
    [ "$code" -eq 3 ] && return 3
    study cifar10-gpu-ablation 5 "$stores/cifar10-gpu" || return
    return "$code"
}

if command -v nvidia-cuda-mps-control > /dev/null; then
    nvidia-cuda-mps-control -d
    trap 'echo quit | nvidia-cuda-mps-control' EXIT
fi
pids=()
ours & pids+=($!)
study cifar10-gpu-paper 5 & pids+=($!)
study cifar10-gpu-standard 1 & pids+=($!)
code=0
for pid in "${pids[@]}"; do
    wait "$pid" || { found=$?; [ "$code" -eq 3 ] || code=$found; }
done
exit "$code"
