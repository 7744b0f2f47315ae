# A living host changes hands and goes back: VMs run under xl on C's store with disks and vifs; ours takes over the store, then
# the VMs, xl works on all of them meanwhile, and everything is given back. No guest notices, and nothing is left. Run with
# `--store c --vmlinux`.
. /lab/lib.sh
OURS=/usr/local/bin/xylem-xenstored
C=/usr/lib/xen-4.17/bin/xenstored

# written NAME: how often it wrote to its disk and read back what it had written.
written() { grep -c 'XYLEM-GUEST: io=[0-9]' "$(console_log "$1")"; }

# goes_on NAME: it writes on, and nothing that it read back was wrong.
goes_on() {
    lab_written=$(written "$1")
    wait_for "[ \$(written $1) -gt $((lab_written + 1)) ]" 90 && no_failed_io "$(console_log "$1")"
}

# all_go_on NAME: after that step.
all_go_on() {
    for it in lin1 lin2; do check "$1: $it writes on" goes_on $it; done
    check "$1: the network of lin1 works" ping -c 1 -W 10 10.0.0.5
    check "$1: the network of lin2 works" ping -c 1 -W 10 10.0.0.6
    check "$1: they are the same domains" [ "$(domids)" = "$started" ]
}

domids() { for it in lin1 lin2 uni1 uni2 uni3; do xl domid $it; done | tr '\n' ' '; }

# of_xl JSON-KEY NAME: a number in xl's list of that domain.
of_xl() { xl list -l "$2" | sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" | head -n 1; }

# has_disk NAME VDEV: whether xl's configuration of it has that.
has_disk() { xl list -l "$1" | grep -q "\"vdev\": \"$2\""; }

for number in 1 2; do
    cp /guest/disk.img /tmp/disk$number.img
    xl_linux_cfg lin$number /tmp/disk$number.img
    sed -i -e "s/10.0.0.5/10.0.0.$((number + 4))/" -e 's/^memory = .*/memory = 96/' /tmp/lin$number.cfg
done
for number in 1 2 3; do unikernel_cfg uni$number "type = 'pv'" "vif = ['bridge=xenbr0']"; done
cp /guest/disk.img /tmp/more.img

# What first VMs ever leave is there already.
xl create -q /tmp/uni1.cfg && xl destroy uni1
# It notes dom0's memory.
xl list -l >/dev/null
host_state | grep -v '^/tool/xenstored' >/tmp/state.before
ls /var/lib/xen >/tmp/kept.before
for it in lin1 lin2 uni1 uni2 uni3; do check "xl create $it" xl create -q /tmp/$it.cfg; done
started=$(domids)
for it in lin1 lin2; do check "$it is up" console_wait $it 'XYLEM-GUEST: ready' 400; done
all_go_on "xl, C's store"

check "our store takes over" xenstore-control live-update $OURS
start_xylemd
start=$(now)
check "xy adopt --all" xy adopt --all
echo "adopt --all took $(seconds_since "$start") s"
check "all are ours" [ "$(xy vm-list | awk '$4 == "running"' | wc -l)" = 5 ]
check "xl's processes are gone" wait_for '[ -z "$(pidof xl)" ]' 10
all_go_on "ours"

check "xl list -l has all" [ "$(xl list -l | grep -c '"domid": [1-9]')" = 5 ]
check "xl mem-max" xl mem-max lin1 112
check "xl mem-set" xl mem-set lin1 90
check "xl reads it" [ "$(of_xl target_memkb lin1)" = $((90 << 10)) ]
check "xl mem-set, back" xl mem-set lin1 96
check "xl vcpu-set" xl vcpu-set lin1 1
check "xl uptime" sh -c 'xl uptime lin1 | grep -q "^lin1 "'
check "xl config-update" xl config-update lin1 /tmp/lin1.cfg
check "a disk is attached by us" xy block-attach lin1 format=raw,vdev=xvdb,access=r,target=/tmp/more.img
check "xl has it in its configuration" has_disk lin1 xvdb
check "it is detached" xy block-detach lin1 xvdb
check "then it has not" sh -c '! xl list -l lin1 2>&1 | grep -q -e xvdb -e WARN'
check "xl renames it" xl rename lin1 lin9
check "and back" xl rename lin9 lin1
kill_xylemd
start_xylemd
check "another daemon has them" [ "$(xy vm-list | awk '$4 == "running"' | wc -l)" = 5 ]
check "xl still works on them" xl mem-set lin1 96

# A VM that xy made.
unikernel_cfg own "disk = ['/tmp/more.img,raw,xvda,w']"
check "xy create" xy create -q /tmp/own.cfg
check "xl saves it" xl save own /tmp/own.save
check "it is gone" wait_for '! xy domid own' 30
check "we restore what xl saved" xy restore /tmp/own.save
check "it is ours" xy domid own
check "xl cannot migrate it without a host, and it runs on" sh -c '! xl migrate -s false own nowhere; xy vm-list | grep "^own .*running"'
printf 'shift\nexec "$@"\n' >/tmp/not-ssh
# This Xen has no shadow paging, without which xl migrates no PV guest.
unikernel_cfg mover "type = 'pvh'"
check "xy create mover" xy create -q /tmp/mover.cfg
check "xl migrates it, to xl on this host" xl migrate -s "sh /tmp/not-ssh" mover here
check "it is not ours any more" wait_for '! xy vm-list | grep -q "^mover "' 30
check "xl ends it" xl destroy mover

# Given away, its disk is in use as before.
check "a VM is given to xl" xy disown own
check "it is xl's" refused_with 'not managed by Xylem' xy pause own
unikernel_cfg thief "disk = ['/tmp/more.img,raw,xvda,w']"
check "its disk cannot be had" refused_with 'more.img' xy create -q /tmp/thief.cfg
kill_xylemd
start_xylemd
check "nor after a restart" refused_with 'more.img' xy create -q /tmp/thief.cfg
check "it comes back" xy adopt own
check "and goes again" xy disown own
check "xl destroys it" xl destroy own
check "then its disk is free" wait_for 'xy create -q /tmp/thief.cfg' 30
check "destroy" xy destroy thief

start=$(now)
check "xy disown --all" xy disown --all
echo "disown --all took $(seconds_since "$start") s"
check "none is ours" [ "$(xy vm-list | wc -l)" = 1 ]
all_go_on "xl, our store"
check "xl attaches a disk" xl block-attach lin2 format=raw,vdev=xvdb,access=r,target=/tmp/more.img
check "it has it" has_disk lin2 xvdb
check "xl detaches it" xl block-detach lin2 xvdb
kill_xylemd
check "C's store is back" xenstore-control live-update $C
all_go_on "xl, C's store again"
for it in lin1 lin2; do
    check "xl shuts $it down" timeout 120 xl shutdown -w $it
    check "$it has no wrong data" no_failed_io "$(console_log $it)"
done
for it in lin1 lin2 uni1 uni2 uni3; do check "xl destroys $it" xl destroy $it; done
rm -rf /run/xylem
check "nothing is left" wait_for 'host_state | grep -v "^/tool/xenstored" >/tmp/state.now; cmp -s /tmp/state.before /tmp/state.now' 20
diff /tmp/state.before /tmp/state.now
check "nor of files" sh -c 'ls /var/lib/xen | diff - /tmp/kept.before'
