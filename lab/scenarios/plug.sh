# Disks and interfaces come to a running Linux guest and go again, by xy; xl sees them.
. /lab/lib.sh
start_xylemd
truncate -s 16M /disk-a.raw /disk-b.raw
linux_cfg plug "memory = 192" "cmdline = 'console=hvc0 $FAST_BOOT'" \
    "disk = ['/disk-a.raw,raw,xvda,w']" "vif = ['bridge=xenbr0']"
check "create" xy create -q /tmp/plug.cfg
domid=$(xy domid plug)
state() { xenstore-read "/local/domain/0/backend/$1/$domid/$2/state"; }
check "the first disk is connected" wait_for "[ \"\$(xenstore-read /local/domain/0/backend/vbd/$domid/51712/state)\" = 4 ]" 240
host_state >/tmp/state.before

for round in 1 2; do
    check "attach a disk" xy block-attach plug /disk-b.raw raw xvdb w
    check "the guest connects it" wait_for "[ \"\$(xenstore-read /local/domain/0/backend/vbd/$domid/51728/state)\" = 4 ]" 120
    check "attach an interface" xy network-attach plug bridge=xenbr0
    check "the guest connects it too" wait_for "[ \"\$(xenstore-read /local/domain/0/backend/vif/$domid/1/state)\" = 4 ]" 120
    check "it is on the bridge" test -e "/sys/class/net/xenbr0/brif/vif$domid.1"
    check "xl sees both disks" test "$(xl block-list plug | wc -l)" = 3
    check "xl sees both interfaces" test "$(xl network-list plug | wc -l)" = 3
    check "detach the disk" xy block-detach plug xvdb
    check "detach the interface" xy network-detach plug 1
    check "the loop device is gone" sh -c '! losetup -a | grep -q disk-b'
done
check "attach once more" xy block-attach plug /disk-b.raw raw xvdb w
check "the guest connects it once more" wait_for "[ \"\$(xenstore-read /local/domain/0/backend/vbd/$domid/51728/state)\" = 4 ]" 120
check "take it without asking" xy block-detach --force plug xvdb
check "a missing file is refused" sh -c '! xy block-attach plug /missing.raw raw xvdc w 2>/tmp/said && grep -q /missing.raw /tmp/said'
check "explain" xy explain plug
check "plan" xy plan reboot plug
check "destroy" xy destroy plug
check "no loop device is left" sh -c '! losetup -a | grep -q disk-'
