# `kill -9` of xylemd at random moments of everything that is done with a VM: kills.sh [KILLS [SEED]]
#
# Afterwards, with the next daemon, the VM runs as described, with every device connected, or is gone with nothing left of
# it; and once it is destroyed dom0 is as it was before: domains, store nodes, loop devices, bridge ports, backends and
# what they map.
. /lab/lib.sh
wanted=${1:-55}
seed=${2:-1}
start_xylemd
for disk in a b c; do truncate -s 4M /disk-$disk.raw; done
unikernel_cfg vm "type = 'pv'" "disk = ['/disk-a.raw,raw,xvda,w', '/disk-b.raw,raw,xvdb,w']" "vif = ['bridge=xenbr0']" "extra = 'xylem.quiet'"

rows() { "$@" 2>/dev/null | tail -n +2; }
# all_connected COLUMN ROWS: whether all of them have the state 4 there.
all_connected() {
    echo "$2" | awk -v column="$1" '$column != 4 { exit 1 }'
}

# What there is, but for the directories that a killed daemon emptied, six at most: they go with the next VM. The end looks
# at all.
state() { host_state | grep -v '^/\(xylem\|xylem/vm\|vm\|local/domain/0/backend\(/[a-z]*\)\?\) = ""'; }
same_state_but_directories() {
    wait_for 'state >/tmp/state.now; cmp -s /results/state.before /tmp/state.now' 20
    diff /results/state.before /tmp/state.now
}

# as_described: the domain runs; each device that the VM has is connected, has its loop device or port, and there is no other.
as_described() {
    domid=$(xy domid vm 2>/dev/null) || return 1
    xl list vm | awk 'NR == 2 && $5 ~ /^..----$/ { good = 1 } END { exit !good }' || return 1
    disks=$(rows xy block-list vm)
    vifs=$(rows xy network-list vm)
    disks_count=$(echo "$disks" | grep -c .)
    vifs_count=$(echo "$vifs" | grep -c .)
    [ "$disks_count" -ge 1 ] && [ "$disks_count" -le 3 ] && [ "$vifs_count" -le 2 ] || return 1
    all_connected 4 "$disks" || return 1
    [ "$vifs_count" = 0 ] || all_connected 5 "$vifs" || return 1
    [ "$(losetup -a | wc -l)" = "$disks_count" ] || return 1
    [ "$(rows xl block-list vm | grep -c .)" = "$disks_count" ] || return 1
    [ "$(ls /sys/class/net/xenbr0/brif | wc -l)" = "$vifs_count" ] || return 1
    [ "$(ls /sys/class/net/xenbr0/brif | grep -c "^vif$domid\\.")" = "$vifs_count" ] || return 1
    [ "$(ls /sys/bus/xen-backend/devices | wc -l)" = $((disks_count + vifs_count)) ]
}
is_gone() {
    xy domid vm >/dev/null 2>&1 && return 1
    state >/tmp/state.now
    cmp -s /results/state.before /tmp/state.now
}
# Nothing is under way, and it is one or the other.
is_settled() {
    xy trace 2>/dev/null | grep -q 'under way\|failing:' && return 1
    as_described && outcome=running && return 0
    is_gone && outcome=gone
}

# prepare OPERATION: the VM that it wants.
prepare() {
    [ "$1" = start ] && return
    xy create -q /tmp/vm.cfg || fail "create"
    wait_for as_described 60 || fail "the VM does not come up: $(xy block-list vm; xy network-list vm)"
    [ "$1" = unplug-c ] || return 0
    xy block-attach vm /disk-c.raw raw xvdc w || fail "block-attach"
    wait_for as_described 60 || fail "the third disk does not come up"
}

operate() {
    case $1 in
        start) xy create -q /tmp/vm.cfg ;;
        destroy) xy destroy vm ;;
        shutdown) xy shutdown -w -w vm >/tmp/operate.log ;;
        reboot) xy reboot -w -w vm >/tmp/operate.log ;;
        plug-disk) xy block-attach vm /disk-c.raw raw xvdc w ;;
        plug-vif) xy network-attach vm bridge=xenbr0 ;;
        unplug-disk) xy block-detach vm xvdb ;;
        unplug-c) xy block-detach vm xvdc ;;
        unplug-vif) xy network-detach vm 0 ;;
        take-disk) xy block-detach --force vm xvdb ;;
        take-vif) xy network-detach --force vm 0 ;;
    esac
}

take_down() {
    if xy domid vm >/dev/null 2>&1; then xy destroy vm >/tmp/destroy.log 2>&1; fi
    same_state_but_directories
}

# Emptied directories stay until the next VM goes: the state to compare with has seen one.
prepare shutdown
xy destroy vm
host_state >/results/state.whole
state >/results/state.before

kills=0
number=0
operations=0
for operation in start destroy shutdown reboot plug-disk plug-vif unplug-disk unplug-c unplug-vif take-disk take-vif; do
    prepare $operation
    started=$(now)
    operate $operation || fail "$operation fails without a kill"
    took=$(seconds_since "$started")
    check "$operation, not killed" wait_for is_settled 60
    take_down >/tmp/left || fail "$operation, not killed: something is left: $(cat /tmp/left)"
    running=0 gone=0
    operations=$((operations + 1))
    each=$((wanted * operations / 11 - wanted * (operations - 1) / 11))
    for kill in $(seq "$each"); do
        prepare $operation
        number=$((number + 1))
        delay=$(awk -v seed=$((seed * 1000 + number)) -v took="$took" 'BEGIN { srand(seed); printf "%.3f\n", rand() * took * 1.1 }')
        operate $operation >/tmp/operate.log 2>&1 &
        client=$!
        sleep "$delay"
        kill_xylemd
        wait $client
        start_xylemd
        outcome=neither
        if wait_for is_settled 60; then
            kills=$((kills + 1))
            [ $outcome = gone ] && gone=$((gone + 1)) || running=$((running + 1))
        else
            check "$operation, killed after $delay s: the VM runs as described or is gone" false
            xy trace
            xy block-list vm
            xy network-list vm
            losetup -a
            same_state_but_directories
        fi
        take_down >/tmp/left || {
            check "$operation, killed after $delay s: nothing is left" false
            cat /tmp/left /tmp/destroy.log
            fail "what is left would be found again at each further kill"
        }
    done
    echo "$operation (takes $took s): $each kills, $running running as described, $gone gone, nothing left"
done
echo "$kills kills of xylemd"
check "as many as were wanted" [ $kills = "$wanted" ]
prepare shutdown
check "destroy" xy destroy vm
check "nothing at all is left" same_state /results/state.whole
