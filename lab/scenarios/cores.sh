# Core files of domains of each kind. Of a paused PV domain xl makes one of the same bytes; of the others it asks for each page
# below 4 GiB by itself, which takes more than a quarter of an hour under emulation. What their device models say to people. And
# what becomes of a guest that crashes, of one whose daemon is killed meanwhile, and of one that runs on.
# lab-addition: hvm
. /lab/lib.sh
modprobe tun

boot_code='\061\300\216\330\276\025\174\254\204\300\164\006\272\370\003\356\353\365\364\353\375XYLEM-BOOT-SECTOR\r\n\000'

start_xylemd
host_state >/tmp/state.before

# names FILE: of its sections, which are its end.
names() { tail -c 100 "$1" | tr '\0' '\n' | grep '^\.'; }

unikernel_cfg pv "type = 'pv'" "vcpus = 1"
unikernel_cfg pvh "type = 'pvh'" "vcpus = 1"
hvm_cfg hvm
for kind in pv pvh hvm; do
    echo "== $kind"
    check "create" xy create -q /tmp/$kind.cfg
    sleep 2
    check "pause" xy pause $kind
    check "a core by us" xy dump-core $kind /tmp/ours.core
    check "it is an ELF core file" [ "$(od -An -tx1 -N 5 /tmp/ours.core | tr -d ' ')" = 7f454c4602 ]
    names /tmp/ours.core | tee /results/$kind.sections
    if [ $kind = pv ]; then
        check "a core by xl" xl dump-core $kind /tmp/theirs.core
        check "of the same bytes" cmp /tmp/ours.core /tmp/theirs.core
        rm /tmp/theirs.core
    else
        check "it has its pages by frame number" grep -q xen_pfn /results/$kind.sections
    fi
    check "only root can read it" [ "$(stat -c %a /tmp/ours.core)" = 600 ]
    check "it stays paused" sh -c "xl list $kind | grep -q -- '--p---'"
    check "unpause" xy unpause $kind
    check "a core of a running one" xy dump-core $kind /tmp/ours.core
    check "it runs on" sh -c "! xl list $kind | grep -q -- '--p---'"
    check "one that it runs through" xy dump-core --live $kind /tmp/ours.core
    if [ $kind = hvm ]; then
        for words in "info block" "info qtree" "info version" "nonsense"; do
            xy qemu-monitor-command hvm "$words" >/tmp/ours
            xl qemu-monitor-command hvm "$words" | tr -d '\r' >/tmp/theirs
            [ "$words" != "info qtree" ] || cp /tmp/ours /tmp/qtree
            check "its device model says the same: $words" diff /tmp/ours /tmp/theirs
        done
        check "which is something" grep -q ide-768 /tmp/qtree
    else
        check "it has no device model" refused_with 'has no device model' xy qemu-monitor-command $kind info
    fi
    check "destroy" xy destroy $kind
    rm /tmp/ours.core
done
check "nothing is left" same_state /tmp/state.before

echo "== refusals"
check "a domain that does not exist" refused_with 'no such domain' xy dump-core none /tmp/x
check "as with xl" eval '! xl dump-core none /tmp/x'
unikernel_cfg one "type = 'pvh'"
check "create" xy create -q /tmp/one.cfg
check "a folder that does not exist" refused_with '/tmp/none/x: no such file' xy dump-core one /tmp/none/x
check "a full disk" refused_with 'no space left' sh -c 'mkdir -p /tmp/small && mount -t tmpfs -o size=1m none /tmp/small && xy dump-core one /tmp/small/core'
check "leaves no file" [ -z "$(ls -A /tmp/small)" ]
umount /tmp/small
check "the guest runs on" sh -c "! xl list one | grep -q -- '--p---'"
check "destroy" xy destroy one

echo "== guests that crash"
linux_cfg lin "type = 'pvh'" "memory = 128" "on_crash = 'coredump-restart'" "extra = 'console=hvc0 quiet panic=1 $FAST_BOOT'"
check "create" xy create -q /tmp/lin.cfg
check "it is up" console_wait lin 'XYLEM-GUEST: ready' 600
domid=$(xy domid lin)
start=$(now)
check "it is told to crash" xy sysrq lin c
check "its core is written" wait_for '[ -e /var/lib/xen/dump/lin ]' 300
echo "after $(seconds_since "$start") s"
check "and it starts again" wait_for '[ "$(xy domid lin)" != "" ] && [ "$(xy domid lin)" != "'"$domid"'" ]' 120
ls -l /var/lib/xen/dump
check "the log says where it is" grep -q 'lin: its core is in /var/lib/xen/dump/lin' /results/xylemd.log
check "it has the kernel's last words" grep -q 'sysrq triggered crash' /var/lib/xen/dump/lin
rm /var/lib/xen/dump/lin

echo "== the daemon is killed while a domain is paused for its core"
xy dump-core lin /tmp/lin.core &
check "it is paused" wait_for 'xl list lin | grep -q -- "--p---"' 60
kill_xylemd
start_xylemd
check "the next daemon lets it go on" wait_for '! xl list lin | grep -q -- "--p---"' 60
check "half a file is not left" [ -z "$(find /tmp -name '*lin.core*')" ]
check "destroy" xy destroy lin
check "nothing is left" same_state /tmp/state.before
