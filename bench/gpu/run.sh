#!/usr/bin/env bash
# Measures the hot shard on a GPU, in order of worth. Each step has a time limit and writes its files as it ends.
#   bench/gpu/run.sh WHEELS DATA OUT [STEP...]      README.md in this folder explains it.
# DEVICE=cpu tries all of it without a GPU. ROWS, NPROBE, NLIST: of the grown set and its index.
set -uo pipefail
cd "$(dirname "$0")/../.."
wheels=$1 data=$2 out=$3
shift 3
device=${DEVICE:-cuda} rows=${ROWS:-1000000} nlist=${NLIST:-1000} nprobe=${NPROBE:-85}
python=${PYTHON:-python3}
work=$PWD/.carpool/gpu
mkdir -p "$work" "$out"
export CARPOOL_DATA=$data PYTHONPATH=$PWD PYTHONUNBUFFERED=1
cores=$(nproc)
half=$((cores > 1 ? cores / 2 : 1))
# The index is built on the second half of the cores while the first half serves the GPU.
front="taskset -c 0-$((half - 1))" back="taskset -c $((half == cores ? 0 : half))-$((cores - 1))"

step() { # step SECONDS NAME COMMAND...
  local limit_s=$1 name=$2 began=$SECONDS
  shift 2
  timeout -k 5 "$limit_s" "$@" > "$out/$name.log" 2>&1
  local status=$?
  echo "== $name: exit $status after $((SECONDS - began)) s"
  tail -n "${LINES_A_STEP:-25}" "$out/$name.log"
}
carpool() { "$python" -m carpool "$@"; }
export -f carpool; export python

setup() {
  [ -z "$wheels" ] || "$python" -m pip install --quiet --no-index --no-deps "$wheels"/*.whl
  "$python" -c 'import torch; print(torch.__version__, torch.cuda.is_available() and torch.cuda.get_device_name())'
}
index() {
  [ -d "$work/grown" ] || $back "$python" -m carpool bench data --rows "$rows" --out "$work/grown"
  [ -f "$work/index/manifest.json" ] || $back "$python" -m carpool index build "$work/grown/corpus.jsonl" \
    --out "$work/index" --vectors "$work/grown/vectors.npy" --fingerprint 0123abcd --nlist "$nlist" \
    --vector-dtype float16 --set indexer.memory_bytes=8589934592
}
conformance() { $front "$python" -m pytest -q -p no:cacheprovider tests/searcher/test_shard_devices.py \
  $([ "$device" = cuda ] && echo "-m gpu" || echo "-k on-cpu"); }
scans() { $front "$python" -m bench.gpu.scans --device "$device" $(printf -- "--rows %s " ${SCAN_ROWS:-50000 100000 200000 1000000}) \
  --nprobe "$nprobe" --seconds 0.4 --json "$out/shard-$device.json"; }
search() { # CORES: 2, as the machine of the other figures, then all
  local contestants=carpool
  [ "$device" = cpu ] || contestants=$contestants,gpu-shard-5,gpu-shard-10,gpu-shard-20,gpu-shard-all
  taskset -c "0-$(($1 - 1))" "$python" -m carpool bench search --collection "$work/grown" --index "$work/index" \
    --contestants "$contestants" --recall 0.95 --memory-held-by none \
    --work "$work/search" --json "$out/search-$device-$1.json"
}
hot_set() { # the hot set that the model of the codes' times chooses
  taskset -c 0-1 "$python" -m carpool bench paper vectorlite --index "$work/index" \
    --questions "$work/grown/queries.npy" --nprobe "$nprobe" --rounds 8 --json "$out/hot-set.json"
}

export -f setup index conformance scans search hot_set
export device rows nlist nprobe work out wheels front back SCAN_ROWS
[ $# -gt 0 ] || set -- setup index conformance scans search-2 hot_set search-all
for name in "$@"; do
  case $name in
    setup) step 60 setup bash -c setup ;;
    index) (step 280 index bash -c index) & indexing=$! ;;
    conformance) step 75 conformance bash -c conformance ;;
    scans) step 100 scans bash -c scans ;;
    search-2 | search-all | hot_set)
      [ -z "${indexing:-}" ] || wait "$indexing"
      indexing=
      case $name in
        search-2) step 200 search-2 bash -c "search 2" ;;
        search-all) step 100 search-all bash -c "search $cores" ;;
        hot_set) step 100 hot_set bash -c hot_set ;;
      esac ;;
    *) echo "no step $name" >&2; exit 2 ;;
  esac
done
wait
