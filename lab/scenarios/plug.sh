# Disks and interfaces come to running guests and go again, by xy: Linux, many at once, a CD, guests that refuse or do not
# answer. xl sees what there is.
. /lab/lib.sh
start_xylemd
host_state >/results/state.before
truncate -s 16M /disk-a.raw /disk-b.raw
# Files under loop devices: busybox's losetup prints the tag that a loop device has instead.
loops() { cat /sys/block/loop*/loop/backing_file 2>/dev/null; }
# connected KIND DOMID DEVID
connected() { wait_for "[ \"\$(xenstore-read /local/domain/0/backend/$1/$2/$3/state)\" = 4 ]" 120; }

echo "== Linux"
linux_cfg plug "type = 'pv'" "memory = 128" "extra = 'console=hvc0 $FAST_BOOT'" "disk = ['/disk-a.raw,raw,xvda,w', ',,xvdc:cdrom,r']" "vif = ['bridge=xenbr0']"
check "create" xy create -q /tmp/plug.cfg
check "the guest is up" console_wait plug 'XYLEM-GUEST: ready' 400
domid=$(xy domid plug)
check "the first disk is connected" connected vbd "$domid" 51712
for round in 1 2; do
    check "attach a disk" xy block-attach plug /disk-b.raw raw xvdb w
    check "the guest connects it" connected vbd "$domid" 51728
    check "attach an interface" xy network-attach plug bridge=xenbr0
    check "the guest connects it too" connected vif "$domid" 1
    check "it is on the bridge" test -e "/sys/class/net/xenbr0/brif/vif$domid.1"
    check "xl sees both disks" [ "$(xl block-list plug | wc -l)" = 3 ]
    check "xl sees both interfaces" [ "$(xl network-list plug | wc -l)" = 3 ]
    check "detach the disk, the guest consents" xy block-detach plug xvdb
    check "detach the interface, the guest consents" xy network-detach plug 1
    check "the loop device is gone" wait_for '! loops | grep -q disk-b' 10
    check "xl sees one disk" [ "$(xl block-list plug | wc -l)" = 2 ]
done
check "attach once more" xy block-attach plug /disk-b.raw raw xvdb w
check "the guest connects it once more" connected vbd "$domid" 51728
check "take it without asking" xy block-detach --force plug xvdb
check "a missing file is refused" refused_with '/missing.raw' xy block-attach plug /missing.raw raw xvdd w
check "a disk that is there is refused" refused_with 'xvda\|51712' xy block-attach plug /disk-b.raw raw xvda w
check "a disk that is not there is refused" refused_with 'xvde\|51776' xy block-detach plug xvde

echo "== a CD"
cp /guest/disk.img /cd-1.iso
cp /guest/disk.img /cd-2.iso
check "insert" xy cd-insert plug xvdc /cd-1.iso
check "the guest connects it" connected vbd "$domid" 51744
check "insert another" xy cd-insert plug xvdc /cd-2.iso
check "the guest connects that" connected vbd "$domid" 51744
check "it is the other one" wait_for 'loops | grep -q cd-2 && ! loops | grep -q cd-1' 10
check "eject" xy cd-eject plug xvdc
check "its loop device is gone" wait_for '! loops | grep -q /cd-' 10
check "explain" xy explain plug
check "plan" xy plan reboot plug
check "destroy" xy destroy plug

echo "== many at once"
unikernel_cfg many "type = 'pv'" "extra = 'xylem.quiet'"
check "create" xy create -q /tmp/many.cfg
domid=$(xy domid many)
jobs=
for letter in a b c d e f g; do
    truncate -s 4M /many-$letter.raw
    xy block-attach many /many-$letter.raw raw xvd$letter w >>/results/many.log 2>&1 &
    jobs="$jobs $!"
done
failed=0
for job in $jobs; do wait "$job" || failed=$((failed + 1)); done
check "seven disks are attached side by side" [ $failed = 0 ] || cat /results/many.log
for devid in 51712 51728 51744 51760 51776 51792 51808; do connected vbd "$domid" $devid || failed=$((failed + 1)); done
check "the guest has them all" [ $failed = 0 ]
jobs=
for letter in a b c d e f g; do
    xy block-detach many xvd$letter >>/results/many.log 2>&1 &
    jobs="$jobs $!"
done
for job in $jobs; do wait "$job" || failed=$((failed + 1)); done
check "they are detached side by side" [ $failed = 0 ] || cat /results/many.log
check "no loop device is left" wait_for '! loops | grep -q many-' 10
check "destroy" xy destroy many

echo "== guests that do not release a device"
for way in refuse hold; do
    unikernel_cfg $way "type = 'pv'" "extra = 'xylem.quiet xylem.$way'" "disk = ['/disk-a.raw,raw,xvda,w']"
    check "create" xy create -q /tmp/$way.cfg
    domid=$(xy domid $way)
    check "its disk is connected" connected vbd "$domid" 51712
    case $way in
        refuse) words='refused.*in use, kept' ;;
        hold) words='did not release .* within 30 s' ;;
    esac
    check "$way: the detach fails and says why" refused_with "$words" xy block-detach $way xvda
    check "$way: the disk is still there" [ "$(xy block-list $way | wc -l)" = 2 ]
    check "$way: force takes it" xy block-detach --force $way xvda
    check "$way: it is gone" [ "$(xy block-list $way | wc -l)" = 1 ]
    check "$way: its loop device too" wait_for '! loops | grep -q disk-a' 10
    check "destroy" xy destroy $way
done

check "nothing is left" same_state /results/state.before
