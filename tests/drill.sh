#!/usr/bin/env bash
# The drill of docs/operations.md: a store that a program changes is dumped and archived, its disk is lost, and it is
# restored to a moment before a mistake. The program is the example `catalogue`, which keeps names, sizes and content
# hashes of a directory tree; it is killed on the way. What the restored store holds is compared with what was there
# at that moment.
#
#   cargo build --release --workspace && cargo build --release -p caliburn --example catalogue && tests/drill.sh
set -euo pipefail
built=$(realpath "${1:-target/release}")
caliburn=$built/caliburn
catalogue=$built/examples/catalogue
work=$(mktemp -d)
archiver=
archive_on() { # goes on until it is ended
    "$caliburn" archive store --to archive --age 0.2 --part-bytes 64K >>archived.txt &
    archiver=$!
}
archive_off() { # ended anywhere, then all that is there
    [ -z "$archiver" ] || kill "$archiver"
    wait "$archiver" 2>/dev/null || true
    archiver=
    "$caliburn" archive store --to archive --now --part-bytes 64K >>archived.txt
}
trap '[ -z "$archiver" ] || kill "$archiver" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
mkdir dumps tree

grow() { # files in the tree
    for number in $(seq "$1" "$2"); do
        mkdir -p "tree/$((number % 23))"
        seq 1 "$number" >"tree/$((number % 23))/file $number"
    done
}
update() { # brings the catalogue up to date; killed twice before
    for _ in 1 2; do
        "$catalogue" store tree >/dev/null &
        sleep 0.0$((RANDOM % 9 + 1))
        kill -9 $! 2>/dev/null || true
        wait $! 2>/dev/null || true
    done
    "$catalogue" store tree
}

echo "--- a store, a dump of it, and an archive of its log"
grow 1 300
update
archive_on
until [ -e store/archived ]; do sleep 0.05; done
"$caliburn" dump store dumps --verify

echo "--- more work, while it is archived and dumped"
grow 301 900
update &
worker=$!
"$caliburn" dump store dumps --rate 100M || echo "(killed before it was closed: no dump this time)"
wait "$worker"
archive_off
"$caliburn" export store objects --output then.jsonl
moment=$(date +%s.%N)
sleep 1.1

echo "--- a mistake; and the disk is lost"
archive_on
rm -rf tree/1 tree/2 "tree/7/file 7"
update
archive_off
rm -rf store

echo "--- what can be reached"
"$caliburn" restore dumps --list --archive archive

echo "--- as it was before the mistake"
"$caliburn" restore dumps restored --archive archive --to "$moment" --log-bytes 8M
"$caliburn" check restored
"$caliburn" export restored objects --output restored.jsonl
if ! cmp then.jsonl restored.jsonl; then
    echo "drill: the restored store is not what it was then" >&2
    exit 1
fi
echo "--- the drill succeeded: $(wc -l <restored.jsonl) lines are as they were"
