# The conformance scripts, as far as clients of the socket go, asked of our daemon on real Xen; each of an empty
# store. `cargo xtask store-scripts --lab` brings the program and the scripts.
. /lab/lib.sh
CARGO_MANIFEST_DIR=/root/xtask
export CARGO_MANIFEST_DIR
for script in /root/crates/xenstore/tests/scripts/*.txt; do
    name=${script##*/}
    kill -9 "$(store_pid)"
    xylem-xenstored --fresh >>/var/log/xen/xylem-xenstored.log 2>&1 </dev/null || fail "no empty store"
    out=$(/root/xtask/store-scripts store-scripts --socket /run/xenstored/socket "${name%.txt}") ||
        { echo "$out"; lab_failed=$((lab_failed + 1)); continue; }
    echo "$out"
done
