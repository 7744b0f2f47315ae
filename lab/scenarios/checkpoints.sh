# lab-addition: lvm
# Checkpoints of guests with their disks, returns to them, and copies of them, on thin volumes of a real LVM.
#
# checkpoints [COUNT]: so many checkpoints of one VM in a row.
. /lab/lib.sh
. /lab/storage-lvm.sh
count=${1:-100}
truncate -s 256M /tmp/disk.lvm
disk=$(losetup -f)
losetup "$disk" /tmp/disk.lvm
start_xylemd
said() { [ "$(grep -c -- "$2" "$(console_log "$1")")" -ge "$3" ]; }
gone() { ! xl list "$1" >/dev/null 2>&1; }
names() { xy checkpoint-list "$@" | awk 'NR > 1 { print $2 }'; }
# last NAME KEY: the last number that a Linux guest has said of it.
last() { grep -o "$2=[0-9]*" "$(console_log "$1")" | tail -1 | cut -d = -f 2; }
goes_on() {
    before=$(last "$1" "$2")
    wait_for "[ \$(grep -c '$2=' $(console_log "$1")) -gt $(($(grep -c "$2=" "$(console_log "$1")") + 3)) ]" 90
}
check "sr-create" xy sr-create s lvmthin "device=$disk"
check "vdi-create" xy vdi-create s:web 16M
put s:web
host_state >/results/state.before

echo "== a unikernel, $count times"
unikernel_cfg uni "type = 'pvh'"
check "create" xy create -q /tmp/uni.cfg
check "it is up" console_wait uni 'hello mode' 60
check "a checkpoint" xy checkpoint uni first
check "it goes on here" wait_for "said uni 'resumed here' 1" 60
check "its name is taken" refused_with 'has a checkpoint first already' xy checkpoint uni first
check "a checkpoint without a name" [ "$(xy checkpoint uni)" = 1 ]
check "another" [ "$(xy checkpoint uni)" = 2 ]
xy checkpoint-list
check "a revert" xy revert uni first
check "it goes on there" wait_for "said uni 'resumed elsewhere' 1" 60
check "destroy them" xy checkpoint-destroy uni first 1 2
check "none is left" [ -z "$(names)" ]
ports() { /usr/lib/xen-*/bin/lsevtchn "$(xy domid uni)" | grep -vc free; }
descriptors() { ls "/proc/$xylemd_pid/fd" | wc -l; }
memory() { awk '/^VmRSS/ { print $2 }' "/proc/$xylemd_pid/status"; }
nodes() { xenstore-ls -f / | grep -c "/$(xy domid uni)/\|xylem"; }
many() {
    for round in $(seq "$1"); do
        xy checkpoint uni "round-$round" >/dev/null && xy checkpoint-destroy uni "round-$round" || return 1
    done
}
check "5 to begin with" many 5
before="$(ports) ports, $(descriptors) descriptors, $(nodes) nodes"
memory_before=$(memory)
start=$(now)
check "$count checkpoints in a row" many "$count"
echo "$count checkpoints and destroys in $(seconds_since "$start") s; xylemd had $memory_before KiB, has $(memory)"
xy trace uni
after="$(ports) ports, $(descriptors) descriptors, $(nodes) nodes"
check "as many things as before ($before; $after)" [ "$before" = "$after" ]
check "it obeys" xy shutdown -w uni
check "dom0 is as before" same_state /results/state.before

echo "== copies of a unikernel"
check "create" xy create -q /tmp/uni.cfg
check "it is up" wait_for "said uni 'hello mode' 1" 60
check "a checkpoint" xy checkpoint uni one
start=$(now)
check "20 copies" xy clone uni:one --count 20
echo "20 copies in $(seconds_since "$start") s"
check "they run" [ "$(xy list | grep -c '^uni-')" = 20 ]
check "the last goes on" wait_for "said uni-20 'resumed elsewhere' 1" 60
check "destroy" eval 'for number in $(seq 20); do xy destroy uni-$number || exit 1; done'
check "its file makes one too" xy clone "/var/lib/xylem/checkpoints/$(xy list uni -v | awk 'NR == 2 { print $7 }')/one" --name=alone
check "destroy" xy destroy alone
check "destroy the checkpoint" xy checkpoint-destroy uni one
check "it obeys" xy shutdown -w uni
check "dom0 is as before" same_state /results/state.before

echo "== Linux with a disk"
linux_cfg web "type = 'pvh'" "tsc_mode = 'native'" "memory = 128" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.5 xylem.io=1 xylem.mem=8'" "disk = ['s:web,,xvda,w']" "vif = ['bridge=xenbr0']"
check "create" xy create -q /tmp/web.cfg
check "it is up" console_wait web 'XYLEM-GUEST: ready' 400
check "it writes" console_wait web 'io=5' 120
check "a checkpoint" xy checkpoint web before
xy trace web
written=$(last web io)
check "it goes on" goes_on web io
wait_for "[ $(last web io) -gt $((written + 20)) ]" 1 || sleep 20
later=$(last web io)
xy vdi-list s
start=$(now)
check "a revert" xy revert web before
echo "reverted in $(seconds_since "$start") s, from $later back to about $written"
check "it goes on" goes_on web io
check "where it was ($(last web io))" [ "$(last web io)" -lt "$later" ]
check "its memory is as it was" goes_on web mem
check "it answers" wait_for 'ping -c 1 -W 2 10.0.0.5' 60
check "nothing that it read was wrong" no_failed_io "$(console_log web)"
check "its memory was right" eval '! grep -q mem=failed "$(console_log web)"'
check "a copy cannot have its name" refused_with 'exists already' xy clone web:before --name=web
check "it obeys" xy shutdown -w web
check "a copy" xy clone web:before --name=copy
mac=$(xenstore-read "/local/domain/$(xy domid copy)/device/vif/0/mac")
check "it goes on" goes_on copy io
check "it answers" wait_for 'ping -c 1 -W 2 10.0.0.5' 60
cat /proc/net/arp
check "by its own address" grep -qi "10.0.0.5 .*$mac" /proc/net/arp
check "nothing that it read was wrong" no_failed_io "$(console_log copy)"
check "it obeys" xy shutdown -w copy
xy vdi-list s
check "a revert of a VM that is gone" xy revert web before
check "it goes on" goes_on web io
echo "== a daemon that is killed"
for delay in 0.3 0.8 1.5; do
    xy checkpoint web "killed" >/dev/null 2>&1 &
    making=$!
    sleep $delay
    kill_xylemd
    wait $making
    start_xylemd
    wait_for "! xy explain web 2>/dev/null | grep -q settle" 30
    sleep 1
    ls -A /var/lib/xylem/checkpoints/*
    snapshots=$(xy vdi-list s | grep -c ':ck-')
    case $(names web | tail -1) in
        killed) check "it is whole" [ "$snapshots" = 2 ] && xy checkpoint-destroy web killed ;;
        *) check "nothing is left of it" [ "$snapshots" = 1 ] ;;
    esac
    check "it goes on" goes_on web io
done
check "nothing that it read was wrong" no_failed_io "$(console_log web)"
check "it obeys" xy shutdown -w web
check "destroy the checkpoint" xy checkpoint-destroy web before
check "no snapshot is left" eval '! xy vdi-list s | grep -q :ck-'
check "dom0 is as before" same_state /results/state.before
check "destroy the disks" eval 'xy vdi-destroy s:web && xy vdi-destroy s:copy-xvda'
check "sr-destroy" xy sr-destroy s
no_group_is_left
