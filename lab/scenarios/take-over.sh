# A host changes its store while it runs: C xenstored, ours, another of ours, C again, by live update. A Linux guest
# writes to its disk all the time; xl, its process for each guest, xenconsoled and the kernels keep their
# connections. Run with `--store c`.
. /lab/lib.sh
OURS=/usr/local/bin/xylem-xenstored
C=/usr/lib/xen-4.17/bin/xenstored

# What the guest has written so far.
written() { grep -c 'XYLEM-GUEST: io=[0-9]' "$(console_log lin1)"; }

# goes_on: the guest writes on, and nothing that it read back was wrong.
goes_on() {
    before=$(written)
    wait_for "[ \$(written) -gt $((before + 1)) ]" 60 && ! grep -q 'io=failed' "$(console_log lin1)"
}

# store: everything in it. Some daemons leave a note of who they are.
store() { xenstore-ls -fp / | grep -v '^/tool/xenstored'; }

# served_by: the program that serves.
served_by() { readlink "/proc/$(cat /run/xenstored/xenstored.pid)/exe"; }

# uses NAME: what xl and the guests do with a store.
uses() {
    check "$1: lin1 writes on" goes_on
    check "$1: xl list" sh -c 'xl list | grep -q "^lin1 "'
    check "$1: a disk is attached to lin1" xl block-attach lin1 format=raw,vdev=xvdb,access=r,target=/tmp/more.img
    check "$1: lin1 has connected it" wait_for "xl block-list lin1 | awk '\$1 == 51728 && \$4 == 4 { good = 1 } END { exit !good }'" 60
    check "$1: it is detached" xl block-detach lin1 xvdb
    check "$1: a guest is made" xl create -q /tmp/uni1.cfg
    check "$1: it has its devices" wait_for 'guest_says uni1 "vif 0 connected"' 60
    check "$1: it is destroyed" xl destroy uni1
    rm -f "$(console_log uni1)"
    check "$1: dom0 pings lin1" ping -c 1 -W 5 10.0.0.5
}

# update NAME PROGRAM: by which another program serves. How long it took is with the emulated start of both programs.
update() {
    store >/results/store.before
    pid=$(cat /run/xenstored/xenstored.pid)
    start=$(now)
    check "live update to $1" xenstore-control live-update "$2" || exit 1
    took=$(seconds_since "$start")
    check "$1: serves" wait_for "[ \"\$(served_by)\" = $2 ]" 30
    # Ours has a separate process for its hypercalls.
    brokers=0
    [ "$2" = $C ] || brokers=1
    check "$1: brokers" wait_for "[ \$(pidof xylem-broker | wc -w) = $brokers ]" 60
    store >/results/store.after
    check "$1: the store is as it was" diff /results/store.before /results/store.after
    echo "$1: took $took s; process $pid, now $(cat /run/xenstored/xenstored.pid); $(wc -l </results/store.after) nodes"
    uses "$1"
}

cp /guest/disk.img /tmp/disk1.img
cp /guest/disk.img /tmp/more.img
xl_linux_cfg lin1 /tmp/disk1.img
unikernel_cfg uni1 "type = 'pv'" "vif = ['bridge=xenbr0']"
check "served by C at first" [ "$(served_by)" = $C ]
check "xl create lin1" xl create -q /tmp/lin1.cfg
check "lin1 is up" console_wait lin1 'XYLEM-GUEST: ready' 240
update "ours" $OURS
update "ours again" $OURS
update "C again" $C
check "lin1 hears that it shall shut down" xl shutdown -w lin1
check "and is gone" wait_for '! xl domid lin1' 60
echo "lin1 wrote $(written) times"
