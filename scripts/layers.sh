#!/bin/sh
# Who may include whom: "folder: what its #include "…" may begin with".
cd "$(dirname "$0")/.." || exit 1
status=0
while IFS=: read -r folder allowed; do
    [ -d "src/$folder" ] || continue
    pattern=$(echo $allowed | sed 's/ /|/g')
    grep -rnE '^ *# *include *"' "src/$folder" | grep -vE "include *\"($pattern)" && status=1
done <<'EOF'
base: infer_base\.h base/
graph: infer_[a-z]*\.h base/ graph/
compute: infer_base\.h base/ compute/
models: infer[_a-z]*\.h base/ compute/ models/
vindex: infer[_a-z]*\.h base/ compute/ models/ vindex/
inference: infer[_a-z]*\.h base/ compute/ models/ vindex/ inference/
server: infer[_a-z]*\.h base/ server/
cli: infer[_a-z]*\.h base/ cli/
EOF
[ $status -eq 0 ] || echo "these includes go up or across"
exit $status
