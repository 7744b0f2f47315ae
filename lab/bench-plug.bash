# Start and destroy of one VM with disks on raw files, by xy and then by xl in the same boot. Prints
# `SAMPLE TOOL-VERB-DISKS SECONDS`. What a tool cannot do is told and has no sample.
. /lab/lib.sh
rounds=${1:-3}

start_xylemd
mkdir -p /disks
for number in $(seq 0 254); do truncate -s 1M "/disks/$number.raw"; done

# vdev NUMBER: xvda, xvdb, and on to xvdiv.
vdev() {
    local letters=abcdefghijklmnopqrstuvwxyz
    if [ "$1" -lt 26 ]; then
        echo "xvd${letters:$1:1}"
    else
        echo "xvd${letters:$(($1 / 26 - 1)):1}${letters:$(($1 % 26)):1}"
    fi
}

seconds() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.4f\n", b - a }'; }

# measure TOOL DISKS
measure() {
    local tool=$1 disks=$2 list= number began ended
    for number in $(seq 0 $((disks - 1))); do
        list="$list'/disks/$number.raw,raw,$(vdev "$number"),w',"
    done
    unikernel_cfg plug "disk = [$list]"
    began=$EPOCHREALTIME
    if ! timeout 240 "$tool" create /tmp/plug.cfg >/results/plug.log 2>&1; then
        echo "$tool cannot start a VM with $disks disks: $(tail -n 1 /results/plug.log)"
        timeout 120 "$tool" destroy plug >/dev/null 2>&1
        return 1
    fi
    ended=$EPOCHREALTIME
    echo "SAMPLE $tool-start-$disks $(seconds "$began" "$ended")"
    if [ "$tool" = xy ]; then
        check "xy and xl see the $disks disks" \
            test "$(xy block-list plug | wc -l)-$(xl block-list plug | wc -l)" = "$((disks + 1))-$((disks + 1))"
    fi
    began=$EPOCHREALTIME
    timeout 240 "$tool" destroy plug >/results/plug.log 2>&1 || fail "$tool destroy: $(tail -n 1 /results/plug.log)"
    ended=$EPOCHREALTIME
    echo "SAMPLE $tool-stop-$disks $(seconds "$began" "$ended")"
}

host_state >/tmp/state.before
for disks in 1 8 32 128 255; do
    for round in $(seq "$rounds"); do measure xy "$disks" || break; done
done
check "nothing is left of all these" same_state /tmp/state.before
for disks in 1 8 32; do
    for round in $(seq "$rounds"); do measure xl "$disks" || break 2; done
done
true
