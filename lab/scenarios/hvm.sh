# lab-addition: hvm
# HVM guests with Debian's QEMU: a boot sector speaks on the emulated serial port, the screen answers, and whatever
# happens to guest, device model and daemon, nothing is left.
. /lab/lib.sh
modprobe tun

# It writes a line to the first serial port, byte by byte, and halts.
boot_code='\061\300\216\330\276\025\174\254\204\300\164\006\272\370\003\356\353\365\364\353\375XYLEM-BOOT-SECTOR\r\n\000'

# What HVM guests may leave behind beside all that others may.
models() { pidof xen-qemu-system-i386; }
same() { same_state /results/state.before && [ -z "$(models)" ]; }

start_xylemd
host_state >/results/state.before

echo "== a guest boots from its emulated disk"
hvm_cfg one "vif = ['bridge=xenbr0']"
xy plan create /tmp/one.cfg
start=$(now)
printf '#!/bin/sh\necho "$1" >/tmp/viewer\n' >/usr/bin/vncviewer
chmod +x /usr/bin/vncviewer
check "create" xy create -V /tmp/one.cfg || cat /var/log/xen/qemu-dm-one.log
echo "created after $(seconds_since "$start") s"
model=$(models)
check "one device model runs" [ "$(echo "$model" | wc -w)" = 1 ]
tr '\0' ' ' <"/proc/$model/cmdline"; echo
check "as a user of its own" grep -q '^Uid:.19000000' "/proc/$model/status"
check "without capabilities" grep -q '^CapEff:.0000000000000000' "/proc/$model/status"
check "with a filter of system calls" confined "$model" /xylem/xylem-model-1
check "it sees no files" [ -z "$(ls "/proc/$model/root/")" ]
check "its card is on the bridge" ls /sys/class/net/xenbr0/brif/vif1.0-emu
check "which would not take its address" [ "$(cat /sys/class/net/vif1.0-emu/address)" = fe:ff:ff:ff:ff:ff ]
check "the boot sector speaks" wait_for 'grep -q XYLEM-BOOT-SECTOR /tmp/one.serial' 180
echo "spoke after $(seconds_since "$start") s"
check "where the screen is, is told" [ "$(xy vncviewer -p one)" = 127.0.0.1:1 ]
check "a viewer is started with it" wait_for 'grep -qx 127.0.0.1:1 /tmp/viewer' 30
port=$(xenstore-read /local/domain/1/console/vnc-port)
check "the screen answers" sh -c "(sleep 1) | nc 127.0.0.1 $port | head -c 3 | grep -q RFB"
xenstore-ls -fp >/results/state.running
check "without PV drivers it cannot be asked to stop" eval '! xy shutdown one 2>/tmp/err && grep "has no PV drivers.*-F" /tmp/err'
check "nor by xl" eval '! xl shutdown one 2>/tmp/err && grep "PV control interface not available" /tmp/err'
check "-F sends it the ACPI event" eval 'xy shutdown -F one 2>&1 | grep "sending ACPI power button event"'
check "reboot -F: Xen has no such event" eval '! xy reboot -F one 2>/tmp/err && grep "no ACPI reset event" /tmp/err'
check "nor for xl" eval '! xl reboot -F one 2>/tmp/err && grep "failed" /tmp/err'
check "it runs on" eval 'xy list one | grep -q " one "; xl list one'
check "destroy" xy destroy one
check "nothing is left" same

echo "== the device model dies under its guest"
hvm_cfg two "on_crash = 'destroy'"
check "create" xy create -q /tmp/two.cfg
kill -9 "$(models)"
check "its domain goes" wait_for '! xl domid two' 60
check "the daemon says why" grep -q 'two: its device model .*signal 9' /results/xylemd.log
check "nothing is left" same

echo "== the daemon dies; the next one finds the device model"
hvm_cfg three
check "create" xy create -q /tmp/three.cfg
model=$(models)
kill_xylemd
start_xylemd
check "it still runs" [ "$(models)" = "$model" ]
check "destroy" xy destroy three
check "nothing is left" same

echo "== the daemon dies while the device model starts"
for delay in 0.5 1 2 3; do
    hvm_cfg four
    xy create -q /tmp/four.cfg >/dev/null 2>&1 &
    creator=$!
    sleep $delay
    kill_xylemd
    wait $creator
    echo "killed after $delay s: $(models | wc -w) device models"
    start_xylemd
    if xy list -l | grep -q '"four"' && xy destroy four; then
        check "killed at $delay: finished, destroyed, nothing is left" same
    else
        check "killed at $delay: gone, nothing is left" wait_for same 60
    fi
done

echo "== one that cannot start"
hvm_cfg five "device_model_args = ['-no-such-option']"
xy create -q /tmp/five.cfg 2>/tmp/five.err
check "is refused" [ $? = 1 ]
cat /tmp/five.err
check "in QEMU's words" grep -q 'no-such-option' /tmp/five.err
check "nothing is left" same
