#!/usr/bin/env bash
# Runs this bundle's tests (no argument; `--all` with the slow ones) or bars (`bench [ARGUMENT]...`)
# on this machine.
set -euo pipefail
# A shell ignores these signals in background jobs, and tests send them.
[ -n "${HEEDS_SIGNALS-}" ] || HEEDS_SIGNALS=1 exec env --default-signal=HUP,INT,QUIT "$0" "$@"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
FOREBAY_COMMIT="$(head -n 1 "$here/commit")"
export FOREBAY_COMMIT FOREBAY_BIN="$here/bin/forebay"
export PATH="$here/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin"
# Snapshots are only compared: a query to cargo for the workspace would fail here.
export INSTA_WORKSPACE_ROOT="$here" INSTA_UPDATE=no
options=(--show-output)
case "${1-}" in
    '') ;;
    --all) options+=(--include-ignored) ;;
    bench) exec "$here/bin/xtask" bench --program "$here/bin/forebay" "${@:2}" ;;
    *) echo "error: a bundle takes no argument, \`--all\`, or \`bench [ARGUMENT]...\`" >&2 && exit 2 ;;
esac
echo "bundle of $(tr '\n' ' ' <"$here/commit")"
# Cargo runs tests in their package's folder; none of those folders exists here.
mkdir -p "$here/work"
cd "$here/work"
cp "$here/skipped" "$here/log"
for test in "$here"/tests/*; do
    echo "== ${test##*/}"
    if "$test" "${options[@]}" >"$here/output" 2>&1; then
        grep '^test result: ' "$here/output" || true
    else
        cat "$here/output"
        # An executable that crashed counts as a failure.
        grep -q '^test result: FAILED' "$here/output" || echo 'test result: FAILED. 0 passed; 1 failed' >>"$here/log"
    fi
    grep -E '^(test result|skipped): ' "$here/output" >>"$here/log" || true
done
echo
grep '^skipped: ' "$here/log" | sort | uniq -c || true
awk '/^test result: / { passed += $4; failed += $6; skipped += $8 } /^skipped: / { skipped++ }
    END { print passed + 0 " passed, " failed + 0 " failed, " skipped + 0 " skipped"; exit failed > 0 }' "$here/log"
